//! A ledger is read as it was written, or not at all.

use std::path::Path;

use super::{entry, ledger};
use crate::ledger::{Ledger, LedgerError, append};

fn parse(bytes: &[u8]) -> Result<Ledger, LedgerError> {
    Ledger::parse(bytes, Path::new("l.jsonl"))
}

#[test]
fn a_ledger_is_read_back_as_it_was_written() {
    for n in [0, 1, 3] {
        let written = ledger((0..n).map(entry));
        let read = parse(&written.to_bytes()).expect("sound");
        assert_eq!(read, written);
        assert_eq!(read.entries().len(), n as usize);
    }
}

/// The promise: no prefix of a ledger is a ledger, whatever was lost.
#[test]
fn truncated_at_any_byte_it_is_refused() {
    let bytes = ledger([entry(1), entry(2)]).to_bytes();
    for length in 0..bytes.len() {
        let error = parse(&bytes[..length]).expect_err("a truncated ledger");
        assert!(matches!(error, LedgerError::Damaged { .. }), "{length}: {error}");
        let text = error.to_string();
        assert!(text.starts_with("l.jsonl: line ") && text.contains("restore"), "{length}: {text}");
    }
}

#[test]
fn with_any_byte_edited_it_is_refused() {
    let bytes = ledger([entry(1), entry(2)]).to_bytes();
    for at in 0..bytes.len() {
        // One bit, another digit or letter, and a line end: each kind that could parse again.
        for other in [bytes[at] ^ 1, bytes[at] ^ 0x20, b'0', b'\n', b' '] {
            if other != bytes[at] {
                let mut edited = bytes.clone();
                edited[at] = other;
                assert!(parse(&edited).is_err(), "byte {at} from {} to {other}", bytes[at]);
            }
        }
    }
}

#[test]
fn lines_lost_swapped_repeated_or_added_are_noticed() {
    let bytes = ledger([entry(1), entry(2), entry(3)]).to_bytes();
    let lines: Vec<&[u8]> = bytes.split_inclusive(|&b| b == b'\n').collect();
    let orders: [&[usize]; 7] = [
        &[0, 1, 2, 4],
        &[0, 2, 3, 4],
        &[0, 2, 1, 3, 4],
        &[0, 1, 1, 2, 3, 4],
        &[0, 1, 2, 3, 4, 4],
        &[0, 0, 1, 2, 3, 4],
        &[1, 2, 3, 4],
    ];
    for order in orders {
        let edited: Vec<u8> = order.iter().flat_map(|&i| lines[i].to_vec()).collect();
        assert!(matches!(parse(&edited), Err(LedgerError::Damaged { .. })), "{order:?}");
    }
    // Two ledgers, each sound, joined.
    let other = ledger([entry(9)]).to_bytes();
    assert!(parse(&[bytes.clone(), other].concat()).is_err());
}

#[test]
fn the_error_names_the_line() {
    let bytes = ledger([entry(1), entry(2)]).to_bytes();
    let second = bytes.iter().position(|&b| b == b'\n').expect("a line") + 100;
    let mut edited = bytes.clone();
    edited[second] ^= 1;
    let error = parse(&edited).expect_err("edited").to_string();
    assert!(error.starts_with("l.jsonl: line 2: its hash does not fit"), "{error}");
    let error = parse(&bytes[..bytes.len() - 1]).expect_err("truncated").to_string();
    assert!(error.starts_with("l.jsonl: line 4: ends in the middle"), "{error}");
}

#[test]
fn a_later_version_is_refused_as_such() {
    let text = String::from_utf8(ledger([entry(1)]).to_bytes()).expect("UTF-8");
    let later = text.replacen("{\"assay_ledger\":1}", "{\"assay_ledger\":2,\"new\":[]}", 1);
    let error = parse(later.as_bytes()).expect_err("version 2").to_string();
    assert!(error.contains("version 2, and this build reads version 1"), "{error}");
}

/// A chain is no proof of meaning: an entry that hashes right and is none is refused.
#[test]
fn an_entry_of_other_fields_is_refused() {
    let sound = String::from_utf8(ledger([entry(1)]).to_bytes()).expect("UTF-8");
    let head = assay_hip::sha256("{\"assay_ledger\":1}");
    let json = sound.lines().nth(1).and_then(|l| l.split_once("\"entry\":")).expect("an entry").1;
    for (from, to) in [("\"runs\":6", "\"runs\":-6"), ("\"runs\":6", "\"runs\":6,\"extra\":1")] {
        let json = json.strip_suffix('}').expect("closed").replacen(from, to, 1);
        let hash = assay_hip::sha256(format!("{head}{json}"));
        let forged = format!(
            "{{\"assay_ledger\":1}}\n{{\"hash\":\"{hash}\",\"entry\":{json}}}\n\
             {{\"entries\":1,\"head\":\"{hash}\"}}\n"
        );
        let error = parse(forged.as_bytes()).expect_err(to).to_string();
        assert!(error.contains("line 2: is no entry"), "{error}");
    }
}

#[test]
fn a_line_without_end_and_what_is_no_file_are_refused() {
    let mut long = b"{\"assay_ledger\":1}\n{\"hash\":\"".to_vec();
    long.resize(long.len() + (1 << 20), b'0');
    assert!(parse(&long).expect_err("a long line").to_string().contains("longer than any"));
    let folder = tempfile::tempdir().expect("a folder");
    let error = Ledger::read(folder.path()).expect_err("a folder").to_string();
    assert!(error.contains("is not a file"), "{error}");
    let error = Ledger::read(Path::new("/dev/zero")).expect_err("a device").to_string();
    assert!(error.contains("is not a file"), "{error}");
    let large = folder.path().join("large.jsonl");
    std::fs::File::create(&large).and_then(|f| f.set_len(1 << 40)).expect("a sparse file");
    let error = Ledger::read(&large).expect_err("a terabyte").to_string();
    assert!(error.contains("larger than"), "{error}");
    let error = Ledger::read(&folder.path().join("none")).expect_err("no file").to_string();
    assert!(error.contains("assay check --ledger"), "{error}");
}

/// A damaged ledger is not written over.
#[test]
fn nothing_is_appended_to_a_damaged_ledger() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("l.jsonl");
    append(&path, [entry(1)]).expect("a new ledger");
    let mut bytes = std::fs::read(&path).expect("the ledger");
    bytes.truncate(bytes.len() - 20);
    std::fs::write(&path, &bytes).expect("writable");
    let error = append(&path, [entry(2)]).expect_err("damaged");
    assert!(matches!(error, LedgerError::Damaged { .. }), "{error}");
    assert_eq!(std::fs::read(&path).expect("still there"), bytes);
}
