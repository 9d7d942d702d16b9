use super::*;
use proptest::prelude::*;

const NAME: FieldKind = FieldKind { number: 7, is_critical: true, what: "name" };

fn written(fields: Vec<Field>) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, fields).unwrap();
    out
}

fn field(number: u16, is_critical: bool, value: &[u8]) -> Field {
    Field { number, is_critical, value: value.to_vec() }
}

fn read(bytes: &[u8]) -> Result<Fields<'_>, Error> {
    let mut reader = Reader::new(bytes);
    let fields = Fields::read(&mut reader)?;
    reader.finish("test")?;
    Ok(fields)
}

#[test]
fn each_field_stands_once_and_in_order() {
    let bytes = written(vec![field(300, false, b"xyz"), NAME.field(|out| out.push(9))]);
    assert_eq!(bytes, b"\x02\x80\x07\x00\x01\x09\x01\x2c\x00\x03xyz");
    for wrong in [
        &b"\x02\x01\x2c\x00\x00\x80\x07\x00\x00"[..],
        b"\x02\x80\x07\x00\x00\x80\x07\x00\x00",
        // The critical bit does not make a different number.
        b"\x02\x00\x07\x00\x00\x80\x07\x00\x00",
        b"\x01\x00\x00\x00\x00",
        b"\x01\x80\x00\x00\x00",
        b"\x01\x00\x07\x00\x02x",
        b"\x41",
    ] {
        assert!(read(wrong).is_err(), "{wrong:x?}");
    }
    for wrong in [
        vec![field(1, false, b""), field(1, true, b"")],
        vec![field(0, false, b"")],
        vec![field(CRITICAL, false, b"")],
        vec![field(1, false, &[0; 65_536])],
        (1..=FIELDS_MAX as u16 + 1).map(|number| field(number, false, b"")).collect(),
    ] {
        assert!(matches!(put(&mut Vec::new(), wrong), Err(Error::Range(_))));
    }
}

#[test]
fn a_known_field_is_read_to_its_end_and_has_its_own_bit() {
    let bytes = written(vec![field(7, true, b"a"), field(8, true, b"b"), field(9, false, b"c")]);
    let mut fields = read(&bytes).unwrap();
    let byte = |reader: &mut Reader<'_>| Ok(reader.u8("test")?);
    assert_eq!(fields.take(&NAME, byte), Ok(Some(b'a')));
    assert_eq!(fields.take(&NAME, byte), Ok(None));
    let unknown = fields.unknown();
    assert_eq!(unknown, [field(8, true, b"b"), field(9, false, b"c")]);
    assert_eq!(refuse_critical(&unknown), Err(Error::Critical(8)));
    assert_eq!(refuse_critical(&unknown[1..]), Ok(()));
    for wrong in [field(7, false, b"a"), field(7, true, b"ab"), field(7, true, b"")] {
        let bytes = written(vec![wrong.clone()]);
        assert!(read(&bytes).unwrap().take(&NAME, byte).is_err(), "{wrong:?}");
    }
}

fn fields() -> impl Strategy<Value = Vec<Field>> {
    let value = (any::<bool>(), prop::collection::vec(any::<u8>(), 0..40));
    prop::collection::btree_map(1..CRITICAL, value, 0..FIELDS_MAX).prop_map(|all| {
        let all = all.into_iter();
        all.map(|(number, (is_critical, value))| Field { number, is_critical, value }).collect()
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read(all in fields()) {
        let mut mixed = all.clone();
        mixed.reverse();
        let bytes = written(mixed);
        prop_assert_eq!(read(&bytes).unwrap().unknown(), all);
    }

    #[test]
    fn what_is_read_is_written_alike(bytes in prop::collection::vec(0u8..4, 0..40)) {
        let mut reader = Reader::new(&bytes);
        if let Ok(fields) = Fields::read(&mut reader) {
            let read = bytes.len() - reader.rest().len();
            prop_assert_eq!(&written(fields.unknown())[..], &bytes[..read]);
        }
    }
}
