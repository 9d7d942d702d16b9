use super::*;

fn rng(seed: u8) -> Rng {
    Rng::new([seed; 32])
}

fn parties() -> (Identity, Identity, DoorSecret, Token) {
    let [own, registrar] = [1, 2].map(|seed| Identity::from_seed([seed; 32]));
    (own, registrar, DoorSecret::new([3; 16]), Token::new([4; 16]))
}

fn knock() -> (Knock, Door) {
    let (own, registrar, secret, token) = parties();
    let what = (&token, &[6; 12]);
    let knock = Knock::new(&own, &registrar.public(), &secret, what, &mut rng(5)).unwrap();
    (knock, Door::new(registrar, &secret))
}

fn read(door: &Door, knock: &Knock) -> Visitor {
    let mut places = KnockParts::default();
    let mut number = None;
    for frame in &knock.frames {
        let part = door.part(frame).unwrap();
        assert_eq!((frame.len(), part.cookie), (LARGE_LEN, [6; 12]));
        number = Some(part.number);
        places[part.place] = Some(part.bytes);
    }
    door.read(number.unwrap(), &whole(&places).unwrap()).unwrap()
}

#[test]
fn both_ends_get_the_same_channel_and_the_same_words_to_compare() {
    let (own, registrar, secret, token) = parties();
    let hello = Hello::new(&registrar.public(), &secret, &mut rng(7));
    let (mut knock, door) = knock();
    let lead = door.hello(&hello.frame).unwrap();
    let answer = door.cookie(&lead, &[6; 12], &mut rng(8));
    assert_eq!((answer.len(), hello.cookie(&answer)), (hello.frame.len(), Ok([6; 12])));
    let visitor = read(&door, &knock);
    assert_eq!((visitor.half, &visitor.token), (own.public().dh, &token));
    let (mut theirs, welcome) =
        door.welcome(visitor, 77, (None, VisitorKind::Router), &mut rng(6)).unwrap();
    let lens = |frames: &[Vec<u8>]| frames.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lens(&welcome), lens(&knock.frames), "no more goes back than came");
    assert!(knock.take(&welcome[2]).unwrap().is_none());
    assert!(knock.take(&welcome[0]).unwrap().is_none());
    let mut answer = knock.take(&welcome[1]).unwrap().unwrap();
    let ours = &mut answer.channel;
    assert_eq!((ours.words(), ours.binding()), (theirs.words(), theirs.binding()));
    assert_eq!((answer.refused, answer.kind), (None, VisitorKind::Router));
    let frame = ours.seal([7; 16], b"hello").unwrap();
    assert!(theirs.open(&frame).unwrap().starts_with(b"hello"));
    let frame = theirs.seal([8; 16], b"welcome").unwrap();
    assert!(ours.open(&frame).unwrap().starts_with(b"welcome"));
}

#[test]
fn parts_of_two_answers_to_one_knock_are_not_mixed() {
    let (mut knock, door) = knock();
    let answer = |seed, why| {
        let visitor = read(&door, &knock);
        door.welcome(visitor, 1, (why, VisitorKind::Host), &mut rng(seed)).unwrap().1
    };
    let (first, other) = (answer(6, None), answer(7, Some(Refusal::Spent)));
    for frame in [&first[0], &first[1], &other[2], &other[0]] {
        assert!(knock.take(frame).unwrap().is_none());
    }
    let answer = knock.take(&other[1]).unwrap().unwrap();
    assert_eq!(answer.refused, Some(Refusal::Spent));
}

#[test]
fn strangers_and_changed_frames_are_turned_away() {
    let (_, registrar, secret, _) = parties();
    let hello = Hello::new(&registrar.public(), &secret, &mut rng(7));
    let (mut knock, door) = knock();
    let other = Door::new(registrar, &DoorSecret::new([9; 16]));
    assert_eq!(other.hello(&hello.frame).err(), Some(DropReason::BadHandshake));
    assert_eq!(other.part(&knock.frames[0]).err(), Some(DropReason::BadHandshake));
    let cookie = door.cookie(&door.hello(&hello.frame).unwrap(), &[6; 12], &mut rng(8));
    let (_, welcome) =
        door.welcome(read(&door, &knock), 1, (None, VisitorKind::Host), &mut rng(6)).unwrap();
    let changed = |frame: &[u8], at: usize| {
        let mut wrong = frame.to_vec();
        wrong[at] ^= 1;
        wrong
    };
    for at in 0..SMALL_LEN {
        assert!(door.hello(&changed(&hello.frame, at)).is_err());
        assert!(hello.cookie(&changed(&cookie, at)).is_err());
    }
    for at in (0..LARGE_LEN).step_by(7) {
        let wrong = changed(&knock.frames[1], at);
        assert_eq!(door.part(&wrong).err(), Some(DropReason::BadHandshake));
        assert!(knock.take(&changed(&welcome[1], at)).is_err(), "byte {at}");
    }
    for len in [0, 15, SMALL_LEN - 1] {
        assert!(door.hello(&hello.frame[..len]).is_err() && hello.cookie(&cookie[..len]).is_err());
        assert!(door.part(&knock.frames[0][..len]).is_err() && knock.take(&[]).is_err());
    }
    let took = [0, 1, 2].map(|place| knock.take(&welcome[place]).unwrap().is_some());
    assert_eq!(took, [false, false, true], "rejected frames leave the knock usable");
}
