//! One safetensors file: what is written is read back, and what is damaged is refused by name.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use assay_reference::checkpoint::{Shard, Slot, header_of, to_bytes, write};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use crate::support::{Tensors, assert_says, float};

fn cases(n: u32) -> ProptestConfig {
    ProptestConfig {
        cases: n,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

fn parse(bytes: &[u8]) -> assay_reference::Result<Shard> {
    Shard::parse(bytes.to_vec(), Path::new("x.safetensors"))
}

#[track_caller]
fn error(bytes: &[u8]) -> String {
    let text = parse(bytes).expect_err("an error was expected").to_string();
    assert!(text.starts_with("x.safetensors: ") && !text.contains('\n'), "{text}");
    text
}

/// A file with this header text and that many bytes of data.
fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn none() -> BTreeMap<String, String> {
    BTreeMap::new()
}

fn two() -> Tensors {
    [("a".to_owned(), float(Dtype::Bf16, &[2, 3])), ("b".to_owned(), float(Dtype::F32, &[4]))]
        .into()
}

#[test]
fn a_mapped_file_is_the_parsed_bytes_and_its_tensors_are_aligned() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    let mut tensors = two();
    tensors.insert("odd".into(), Tensor::from_bytes(Dtype::U8, vec![3], vec![1, 2, 3]).unwrap());
    tensors.insert("wide".into(), float(Dtype::F64, &[1]));
    let metadata = BTreeMap::from([("format".to_owned(), "pt \"quoted\" é".to_owned())]);
    write(&path, &tensors, &metadata).unwrap();
    let bytes = to_bytes(&tensors, &metadata).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");

    for shard in [Shard::open(&path).unwrap(), parse(&bytes).unwrap()] {
        assert_eq!(shard.tensors(), &tensors);
        assert_eq!(shard.metadata(), &metadata);
        assert_eq!(shard.names().collect::<Vec<_>>(), ["a", "b", "odd", "wide"]);
        assert_eq!(shard.file_bytes(), bytes.len() as u64);
        assert_eq!(shard.data_bytes(), 12 + 16 + 3 + 8);
        assert!(shard.tensor("wide").unwrap().view::<f64>().is_some());
        assert!(shard.tensor("b").unwrap().view::<f32>().is_some());
        let missing = shard.tensor("c").unwrap_err().to_string();
        assert_says(&missing, &["`c`", "4 tensors: `a`, `b`, `odd`, `wide`"]);
    }
}

#[test]
fn the_safetensors_crate_reads_what_is_written() {
    let bytes = to_bytes(&two(), &none()).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(theirs.tensor("a").unwrap().shape(), [2, 3]);
    assert_eq!(theirs.tensor("b").unwrap().data(), two()["b"].bytes());
}

#[test]
fn what_the_safetensors_crate_writes_is_read() {
    let t = two();
    let view =
        safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, vec![2, 3], t["a"].bytes());
    let bytes = safetensors::serialize([("a", view.unwrap())], None).unwrap();
    assert_eq!(parse(&bytes).unwrap().get("a"), t.get("a"));
}

#[test]
fn writing_replaces_a_file_whole_and_keeps_it_on_failure() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    write(&path, &two(), &none()).unwrap();
    let old = Shard::open(&path).unwrap();
    let bad = Tensors::from([("__metadata__".to_owned(), float(Dtype::F32, &[1]))]);
    assert_says(&write(&path, &bad, &none()).unwrap_err().to_string(), &["reserved"]);
    assert_eq!(Shard::open(&path).unwrap().tensors(), &two());
    write(&path, &Tensors::new(), &none()).unwrap();
    assert_eq!(old.tensors(), &two(), "the old map stays intact");
    assert!(Shard::open(&path).unwrap().tensors().is_empty());
    let nowhere = write(&dir.path().join("no/m.safetensors"), &two(), &none());
    assert_says(&nowhere.unwrap_err().to_string(), &["no/m.safetensors"]);
}

#[test]
fn a_truncated_file_is_refused_with_the_bytes_and_the_tensors_that_are_missing() {
    let bytes = to_bytes(&two(), &none()).unwrap();
    let (all, cut) = (bytes.len(), bytes.len() - 13);
    // `b` (16 bytes) comes first because it is wide, then `a` (12): both lose bytes.
    assert_says(
        &error(&bytes[..cut]),
        &[
            &format!("expected {all} bytes"),
            &format!("file has {cut}: 13 bytes are missing"),
            "2 tensors lie in whole or in part beyond the end: `a`, `b`",
        ],
    );
    assert_says(&error(&bytes[..all - 1]), &["1 bytes are missing", "1 tensor lies", "`a`"]);
}

#[test]
fn a_file_that_is_too_long_is_refused_with_the_number_of_bytes() {
    let mut bytes = to_bytes(&two(), &none()).unwrap();
    let all = bytes.len();
    bytes.extend([0; 5]);
    assert_says(
        &error(&bytes),
        &[&format!("expected {all} bytes"), &format!("file has {}: 5 bytes too many", all + 5)],
    );
}

#[test]
fn hostile_headers_are_refused_by_name() {
    assert_says(&error(&[]), &["at least 8 bytes", "file has 0"]);
    assert_says(&error(&[0; 7]), &["file has 7"]);
    assert_says(&error(&[0; 8]), &["header of 0 bytes", "does not begin with `{`"]);
    assert_says(&error(&[0xff; 64]), &[&u64::MAX.to_string(), "limit of 100000000"]);
    let mut long = raw("{}", 0);
    long[0] = 200;
    assert_says(
        &error(&long),
        &["expected 208 bytes or more", "file has 10", "198 bytes of the header"],
    );
    assert_says(&error(&raw("[1,2,3]", 0)), &["does not begin with `{`"]);
    assert_says(&error(&raw("{\"a\": ", 0)), &["header is not valid"]);
    assert_says(&error(&raw("{} x", 0)), &["header is not valid", "trailing characters"]);
    let mut latin = raw("{\"?\":1}", 0);
    latin[10] = 0xe9;
    assert_says(&error(&latin), &["not UTF-8"]);
    let nested = format!("{{\"a\":{}", "[".repeat(50_000));
    assert_says(&error(&raw(&nested, 0)), &["header is not valid", "tensor `a`"]);
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    assert_says(&error(pointer), &["Git LFS pointer", "git lfs pull"]);
}

/// A header of F32 tensors from (name, shape, start, end).
fn header(entries: &[(&str, &str, u64, u64)]) -> String {
    let entries: Vec<String> = entries
        .iter()
        .map(|(name, shape, start, end)| {
            format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}")
        })
        .collect();
    format!("{{{}}}", entries.join(","))
}

#[test]
fn every_tensor_of_a_header_is_checked_on_its_own() {
    let one =
        |shape: &str, start: u64, end: u64| error(&raw(&header(&[("t", shape, start, end)]), 8));
    assert_says(&one("[3]", 0, 8), &["tensor `t`", "[3] of f32 needs 12 bytes", "give it 8"]);
    assert_says(&one("[2]", 8, 0), &["tensor `t`", "run backwards"]);
    let max = u64::MAX.to_string();
    assert_says(&one(&format!("[{max},{max}]"), 0, 8), &["more bytes than can be addressed"]);
    assert_says(&one(&format!("[0,{max},{max}]"), 0, 0), &["more bytes than can be addressed"]);
    assert_says(&one(&format!("[{max}0]"), 0, 8), &["tensor `t`", "header is not valid"]);
    assert_says(&one("[2]", u64::MAX - 8, u64::MAX), &["tensor `t`"]);
    assert_says(&one("[-2]", 0, 8), &["tensor `t`", "-2"]);
    assert_says(&one("[2.5]", 0, 8), &["tensor `t`"]);
    assert_says(&one("[1,1,1,1,1,1,1,1,2]", 0, 8), &["more than 8 dimensions"]);
    let with = |text: &str| error(&raw(text, 8));
    assert_says(
        &with(r#"{"t":{"dtype":"F8_E5M2","shape":[8],"data_offsets":[0,8]}}"#),
        &["tensor `t`", "dtype `F8_E5M2` is not supported", "BF16"],
    );
    assert_says(
        &with(r#"{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1}}"#),
        &["tensor `t`", "unknown field `extra`"],
    );
    assert_says(&with(r#"{"t":{"dtype":"F32","shape":[2]}}"#), &["missing field `data_offsets`"]);
    assert_says(&with(&header(&[("", "[2]", 0, 8)])), &["name must not be empty"]);
    assert_says(&with(&header(&[("a\\nb", "[2]", 0, 8)])), &["a\\nb", "control characters"]);
    assert_says(
        &with(&header(&[("t", "[1]", 0, 4), ("t", "[1]", 4, 8)])),
        &["tensor `t` occurs twice"],
    );
    assert_says(&with(r#"{"__metadata__":{"k":"1","k":"2"}}"#), &["metadata key `k` occurs twice"]);
    assert_says(
        &with(r#"{"__metadata__":{"k":1}}"#),
        &["header is not valid", "expected a string"],
    );
}

#[test]
fn gaps_and_overlaps_are_refused_with_both_neighbours() {
    let gap = header(&[("a", "[1]", 0, 4), ("b", "[1]", 8, 12)]);
    assert_says(&error(&raw(&gap, 12)), &["tensor `b`", "begin at 8", "bytes 4 to 8", "no tensor"]);
    let late = header(&[("a", "[1]", 4, 8)]);
    assert_says(&error(&raw(&late, 8)), &["tensor `a`", "bytes 0 to 4"]);
    let overlap = header(&[("a", "[2]", 0, 8), ("b", "[2]", 4, 12)]);
    assert_says(&error(&raw(&overlap, 12)), &["tensor `b`", "[4, 12] overlap [0, 8] of `a`"]);
    let same = header(&[("a", "[2]", 0, 8), ("b", "[2]", 0, 8)]);
    assert_says(&error(&raw(&same, 8)), &["overlap [0, 8] of `a`"]);
}

#[test]
fn empty_tensors_and_empty_files_are_fine() {
    let shard =
        parse(&raw(&header(&[("a", "[0,7]", 0, 0), ("b", "[]", 0, 4), ("c", "[0]", 4, 4)]), 4));
    let shard = shard.unwrap();
    assert_eq!(shard.get("a").unwrap().shape(), [0, 7]);
    assert_eq!(shard.get("b").unwrap().len(), 1);
    assert!(parse(&raw("{}   ", 0)).unwrap().tensors().is_empty());
}

#[test]
fn what_is_not_a_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert_says(&Shard::open(dir.path()).unwrap_err().to_string(), &["is not a file"]);
    let path = dir.path().join("empty.safetensors");
    fs::write(&path, []).unwrap();
    assert_says(&Shard::open(&path).unwrap_err().to_string(), &["file has 0 bytes"]);
    let absent = Shard::open(&dir.path().join("absent")).unwrap_err();
    assert!(matches!(absent, assay_reference::Error::Io { .. }), "{absent}");
}

fn any_tensor() -> impl Strategy<Value = Tensor> {
    let dtypes = [
        Dtype::Bf16,
        Dtype::F16,
        Dtype::F32,
        Dtype::F64,
        Dtype::F8E4m3,
        Dtype::I32,
        Dtype::I64,
        Dtype::U8,
    ];
    (prop::sample::select(dtypes.to_vec()), prop::collection::vec(0usize..4, 0..4), any::<u8>())
        .prop_map(|(dtype, shape, seed)| {
            let n = shape.iter().product::<usize>() * dtype.size();
            let bytes = (0..n).map(|i| (i as u8).wrapping_mul(37).wrapping_add(seed)).collect();
            Tensor::from_bytes(dtype, shape, bytes).unwrap()
        })
}

fn any_file() -> impl Strategy<Value = (Tensors, BTreeMap<String, String>)> {
    (
        prop::collection::btree_map("[a-z.\"\\\\é]{1,6}", any_tensor(), 0..5),
        prop::collection::btree_map(any::<String>(), any::<String>(), 0..3),
    )
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn whatever_is_written_is_read_back((tensors, metadata) in any_file()) {
        let bytes = to_bytes(&tensors, &metadata).unwrap();
        let shard = parse(&bytes).unwrap();
        prop_assert_eq!(shard.tensors(), &tensors);
        prop_assert_eq!(shard.metadata(), &metadata);
        prop_assert_eq!(to_bytes(shard.tensors(), shard.metadata()).unwrap(), bytes);
    }

    #[test]
    fn any_length_but_the_right_one_is_refused(
        (tensors, metadata) in any_file(),
        cut in 0usize..400,
    ) {
        let mut bytes = to_bytes(&tensors, &metadata).unwrap();
        let right = bytes.len();
        bytes.resize(cut, 0);
        prop_assert_eq!(parse(&bytes).is_ok(), cut == right);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn arbitrary_header_text_never_panics(
        text in "\\{(\"[a-b_]{0,3}\":(\\{(\"(dtype|shape|data_offsets)\":[\\[\\],0-9\"F]{1,12},?){0,3}\\}|[0-9]{1,3}),?){0,3}\\}?",
    ) {
        let _ = parse(&raw(&text, 4));
    }

    #[test]
    fn a_mutated_file_never_panics_and_never_reads_outside(
        (tensors, metadata) in any_file(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = to_bytes(&tensors, &metadata).unwrap();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let length = bytes.len();
        if let Ok(shard) = parse(&bytes) {
            let data: usize = shard.tensors().values().map(|t| t.bytes().len()).sum();
            prop_assert_eq!(data as u64, shard.data_bytes());
            prop_assert!(data < length);
        }
    }

    #[test]
    fn hostile_numbers_never_panic(
        shape in prop::collection::vec(any::<u64>(), 0..10),
        start: u64,
        end: u64,
    ) {
        let text = header(&[("t", &format!("{shape:?}"), start, end)]);
        let _ = parse(&raw(&text, 16));
    }
}

#[test]
fn a_header_alone_is_that_of_the_whole_file_and_names_its_order() {
    let tensors = Tensors::from([
        ("a".to_owned(), Tensor::from_f64(Dtype::Bf16, &[2, 3], &[1.0; 6])),
        ("b".to_owned(), Tensor::from_f64(Dtype::F32, &[2], &[2.0; 2])),
        ("c".to_owned(), Tensor::from_f64(Dtype::Bf16, &[1], &[3.0])),
    ]);
    let slot = |name: &'static str| {
        let tensor = &tensors[name];
        Slot { name, dtype: tensor.dtype(), shape: tensor.shape() }
    };
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let slots = [slot("c"), slot("a"), slot("b")];
    let (mut bytes, order) = header_of(&slots, &metadata).expect("a header");
    assert_eq!(order, [2, 1, 0]);
    order.iter().for_each(|&i| bytes.extend(tensors[slots[i].name].bytes()));
    assert_eq!(bytes, to_bytes(&tensors, &metadata).expect("a file"));

    let twice = header_of(&[slots[0], slots[1], slots[0]], &metadata).expect_err("one name twice");
    assert_says(&twice.to_string(), &["`c`", "same name"]);
    let huge = [usize::MAX, 2];
    let huge = header_of(&[Slot { shape: &huge, ..slots[0] }], &metadata).expect_err("too large");
    assert_says(&huge.to_string(), &["`c`", "cannot be counted"]);
}
