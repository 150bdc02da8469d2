//! A capture file from a stranger.

use holdfast::decode::{DecodeError, Format, decode};

/// Decodes both ways: they count the same, every line of JSON is an object, and nothing fails but the file.
pub fn run(data: &[u8]) {
    let (mut text, mut json, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let as_text = decode(data, Format::Text, &mut text, &mut notes);
    let as_json = decode(data, Format::Json, &mut json, &mut notes);
    match (as_text, as_json) {
        (Ok(as_text), Ok(as_json)) => {
            assert_eq!(as_text, as_json);
            let objects = json.split_inclusive(|&b| b == b'\n').inspect(|line| {
                assert!(line.starts_with(b"{") && line.ends_with(b"}\n"));
            });
            assert_eq!(objects.count() as u64, as_json.packets + 1);
        }
        (Err(DecodeError::Capture(_)), Err(DecodeError::Capture(_))) => assert!(text.is_empty() && json.is_empty()),
        (as_text, as_json) => panic!("{as_text:?}, {as_json:?}"),
    }
}
