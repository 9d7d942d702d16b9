//! Tables by id. [`IdAllocator`] allocates ids, inside [`crate::Sessions`]; a [`IdTable`] elsewhere
//! follows it. Both tell an id in use from an id whose owner was removed.

use std::collections::VecDeque;

use shoal_wire::{IDS_MAX, Id};

/// Values by id, stored densely by number.
#[derive(Clone, Debug)]
pub struct IdTable<I, T> {
    /// By number: the newest owner, and its value.
    entries: Vec<(I, Option<T>)>,
}

impl<I, T> Default for IdTable<I, T> {
    fn default() -> Self {
        IdTable { entries: Vec::new() }
    }
}

impl<I: Id, T> IdTable<I, T> {
    #[inline]
    pub fn get(&self, id: I) -> Option<&T> {
        self.entries.get(id.number()).filter(|entry| entry.0 == id)?.1.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.entries.get_mut(id.number()).filter(|entry| entry.0 == id)?.1.as_mut()
    }

    /// Stores a value for `id`. Returns the value that was at its number: its own or an earlier
    /// owner's.
    pub fn put(&mut self, id: I, value: T) -> Option<(I, T)> {
        let next = self.entries.len() as u32;
        let empty = (next..=id.number() as u32).map(|number| (I::from_bits(number), None));
        self.entries.extend(empty);
        let (before, value) = core::mem::replace(&mut self.entries[id.number()], (id, Some(value)));
        Some((before, value?))
    }

    /// Removes and returns the owner's value.
    pub fn remove(&mut self, id: I) -> Option<T> {
        self.entries.get_mut(id.number()).filter(|entry| entry.0 == id)?.1.take()
    }

    /// The value of `id`, or a new default. An earlier owner of the number loses its value.
    pub fn get_or_default(&mut self, id: I) -> &mut T
    where
        T: Default,
    {
        if self.get(id).is_none() {
            self.put(id, T::default());
        }
        self.entries[id.number()].1.get_or_insert_default()
    }

    /// True if another id with this number has a value here.
    pub fn is_past(&self, id: I) -> bool {
        self.entries.get(id.number()).is_some_and(|(owner, value)| value.is_some() && *owner != id)
    }

    /// All values, ordered by number.
    pub fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.entries.iter().filter_map(|(id, value)| Some((*id, value.as_ref()?)))
    }

    /// All values, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (I, &mut T)> {
        self.entries.iter_mut().filter_map(|(id, value)| Some((*id, value.as_mut()?)))
    }
}

/// Table that allocates ids.
#[derive(Clone, Debug)]
pub(crate) struct IdAllocator<I, T> {
    table: IdTable<I, T>,
    /// Next ids of free numbers, in the order in which the numbers became free.
    free: VecDeque<I>,
}

impl<I, T> Default for IdAllocator<I, T> {
    fn default() -> Self {
        IdAllocator { table: IdTable::default(), free: VecDeque::new() }
    }
}

impl<I: Id, T> IdAllocator<I, T> {
    /// Allocates an id, unless `max` or [`IDS_MAX`] are in use.
    pub(crate) fn add(&mut self, max: usize, value: T) -> Option<I> {
        let made = self.table.entries.len();
        let fresh = || (made < max.min(IDS_MAX)).then(|| I::from_bits(made as u32));
        let id = self.free.pop_front().or_else(fresh)?;
        self.table.put(id, value);
        Some(id)
    }

    /// Frees an id. After that it names nobody.
    pub(crate) fn remove(&mut self, id: I) -> Option<T> {
        let value = self.table.remove(id)?;
        self.free.push_back(id.successor());
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, id: I) -> Option<&T> {
        self.table.get(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: I) -> Option<&mut T> {
        self.table.get_mut(id)
    }

    /// All ids in use, ordered by number.
    pub(crate) fn ids(&self) -> impl Iterator<Item = I> {
        self.table.iter().map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use shoal_wire::LinkId;

    use super::*;

    #[test]
    fn an_id_names_its_owner_and_no_other() {
        let mut owners = IdAllocator::<LinkId, char>::default();
        let a = owners.add(2, 'a').expect("room");
        let b = owners.add(2, 'b').expect("room");
        assert_eq!(owners.add(2, 'c'), None, "two at most");
        assert_eq!((owners.remove(a), owners.remove(a)), (Some('a'), None));
        let c = owners.add(2, 'c').expect("room again");
        assert_eq!((c.number(), c.generation()), (a.number(), 1));
        assert_eq!((owners.get(a), owners.get(c)), (None, Some(&'c')));
        assert!(owners.get_mut(a).is_none() && owners.remove(a).is_none());
        assert_eq!(owners.ids().collect::<Vec<_>>(), [c, b]);
    }

    #[test]
    fn freed_numbers_are_given_out_in_turn() {
        let mut owners = IdAllocator::<LinkId, ()>::default();
        let [a, b] = [(); 2].map(|()| owners.add(2, ()).expect("room"));
        owners.remove(b);
        owners.remove(a);
        let next = [(); 2].map(|()| owners.add(2, ()).expect("room").number());
        assert_eq!(next, [b.number(), a.number()]);
    }

    #[test]
    fn a_table_follows_and_shows_whom_a_value_displaces() {
        let mut table = IdTable::<LinkId, char>::default();
        let old = LinkId::from_bits(3);
        let new = old.successor();
        assert_eq!(table.put(old, 'a'), None);
        assert_eq!(table.put(old, 'b'), Some((old, 'a')));
        assert_eq!(table.put(new, 'c'), Some((old, 'b')));
        assert!(table.get(old).is_none() && table.remove(old).is_none());
        assert_eq!(
            (table.get(new), table.is_past(old), table.is_past(new)),
            (Some(&'c'), true, false)
        );
        assert_eq!(*table.get_or_default(new), 'c');
        assert_eq!(table.iter().map(|(id, value)| (id, *value)).collect::<Vec<_>>(), [(new, 'c')]);
        let gap = LinkId::from_bits(2);
        assert_eq!((table.get(gap), table.is_past(gap.successor())), (None, false));
        assert_eq!(*table.get_or_default(old), char::default());
        assert_eq!((table.get(new), table.is_past(new)), (None, true));
    }
}
