//! Queues and tables stay within their bounds.

/// One thing that has a bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) what: &'static str,
    pub(crate) holds: usize,
    pub(crate) most: usize,
}

/// Returns the first bound that is exceeded.
pub(crate) fn check(bounds: &[Bound]) -> Result<(), String> {
    match bounds.iter().find(|bound| bound.holds > bound.most) {
        None => Ok(()),
        Some(Bound { what, holds, most }) => Err(format!("{what}: {holds}, at most {most}")),
    }
}
