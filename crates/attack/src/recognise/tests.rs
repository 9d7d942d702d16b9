//! Tests with recorded features (`shoal-lab attack --recognise`) and with made-up ones.

use super::*;

/// Four captures of each activity, with the features that `shoal-lab attack --recognise` writes.
fn recorded() -> Vec<ProgramCapture> {
    let mut samples: Vec<(String, ProgramCapture)> = Vec::new();
    for line in include_str!("captures.csv").lines().skip(1) {
        let mut cells = line.split(',');
        let mut word = || cells.next().unwrap().to_owned();
        let (program, activity, number) = (word(), word(), word());
        if samples.last().is_none_or(|(last, _)| *last != number) {
            samples.push((number, ProgramCapture { program, activity, excerpts: Vec::new() }));
        }
        let excerpts = &mut samples.last_mut().unwrap().1.excerpts;
        excerpts.push(cells.map(|cell| cell.parse().unwrap()).collect());
    }
    samples.into_iter().map(|(_, sample)| sample).collect()
}

#[test]
fn shoal_is_recognised_by_its_lengths_and_not_by_its_bytes() {
    let found = recognise(&recorded()).unwrap();
    let ours = found.programs.iter().position(|program| program == "shoal").unwrap();
    assert!(found.found[ours].value > 0.98 && found.alarms[ours].value < 0.02, "{found:?}");
    assert!(found.accuracy.value > 0.95 && found.shuffled < 0.4, "{found:?}");
    let worth = |group| found.groups.iter().find(|worth| worth.group == group).unwrap();
    assert!(worth(FeatureGroup::Lengths).found_alone[ours] > 0.98);
    // A tunnel that masks all bytes looks equally random.
    assert!(worth(FeatureGroup::Bytes).found_alone[ours] < 0.9, "{:?}", worth(FeatureGroup::Bytes));
    let ours = found.activities.iter().filter(|(program, ..)| program == "shoal");
    assert!(ours.clone().count() >= 4 && ours.clone().all(|(_, _, share)| share.value > 0.9));
}

/// Three programs, of which one differs from the others in one feature.
fn made_up() -> Vec<ProgramCapture> {
    let mut draws = Draws::new(5, "made-up", 0);
    let mut sample = |i: usize| {
        let mut excerpt = || -> Vec<f64> {
            let mut values: Vec<f64> = NAMES.iter().map(|_| draws.uniform()).collect();
            values[1] += f64::from(u8::from(i.is_multiple_of(3))) * 5.0;
            values
        };
        let program = ["a", "b", "c"][i % 3].to_owned();
        let excerpts = (0..3).map(|_| excerpt()).collect();
        ProgramCapture { program, activity: if i < 15 { "x" } else { "y" }.into(), excerpts }
    };
    (0..30).map(&mut sample).collect()
}

#[test]
fn a_program_is_found_by_what_differs_and_others_are_a_guess() {
    let found = recognise(&made_up()).unwrap();
    assert_eq!((found.programs.len(), found.captures.clone()), (3, vec![10; 3]));
    assert_eq!(found.found[0].value, 1.0);
    assert!(found.found[0].low > 0.65 && found.found[0].low < 0.8, "{:?}", found.found[0]);
    assert!(found.alarms[0].value < 0.05);
    let others = found.found[1].value + found.found[2].value;
    assert!((0.5..1.5).contains(&others), "{others}");
    assert_eq!(found.features[0].0, NAMES[1].1);
    assert_eq!(found.activities.len(), 6);
    assert!(found.shuffled < 0.6, "{}", found.shuffled);
    let lengths = &found.groups[0];
    assert!(lengths.alone > 0.6 && lengths.found_without[0] < 0.7, "{lengths:?}");
    assert_eq!(found.confusion.iter().flatten().sum::<usize>(), 90);
}

#[test]
fn unusable_training_captures_are_refused() {
    let all = made_up();
    assert_eq!(recognise(&[]), Err(TrainingError::Programs));
    let one: Vec<ProgramCapture> = all.iter().filter(|s| s.program == "a").cloned().collect();
    assert_eq!(recognise(&one), Err(TrainingError::Programs));
    assert_eq!(recognise(&all[..4]), Err(TrainingError::Captures));
    let mut short = all;
    short[3].excerpts[0].pop();
    assert_eq!(recognise(&short), Err(TrainingError::Features));
}

#[test]
fn a_conversation_is_the_longest_of_a_file() {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 101]);
    let mut datagram = |us: u32, from: u8, to: u8| {
        file.extend(words(&[1, us, 32, 32]));
        file.extend([0x45, 0, 0, 32, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
        file.extend([0, 7, 0, 9, 0, 12, 0, 0, 1, 2, 3, 4]);
    };
    (0..9).for_each(|i| datagram(1_000 * i, 1 + (i % 2) as u8, 2 - (i % 2) as u8));
    datagram(3, 1, 3);
    let read = Conversation::read(&file).unwrap();
    assert_eq!(read.len(), 9);
    assert!(read.0[0].up && !read.0[1].up);
    assert_eq!((read.0[0].len, read.0[0].head.as_slice()), (4, &[1, 2, 3, 4][..]));
    let counts = [(32, 1), (4, 2), (3, 3), (2, 0)].map(|(n, _)| read.excerpts(n).len());
    assert_eq!(counts, [1, 2, 3, 0]);
    assert_eq!(Conversation::read(&file[..24]).unwrap(), Conversation::default());
}
