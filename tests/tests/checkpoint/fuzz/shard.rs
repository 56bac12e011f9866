//! Safetensors files.

use std::ops::Range;
use std::path::Path;

use assay_reference::checkpoint::Shard;
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;
use proptest::sample::Index;

use super::cases;

fn parse(bytes: &[u8]) -> assay_reference::Result<Shard> {
    Shard::parse(bytes.to_vec(), Path::new("x.safetensors"))
}

/// The outcome: a shard, or an error that names the file in one paragraph.
fn outcome(bytes: &[u8]) -> Option<Shard> {
    match parse(bytes) {
        Ok(shard) => Some(shard),
        Err(e) => {
            let text = e.to_string();
            assert!(text.starts_with("x.safetensors: ") && !text.contains('\n'), "{text}");
            None
        }
    }
}

/// A file whose every byte has a known meaning.
#[derive(Clone, Debug)]
struct Built {
    bytes: Vec<u8>,
    tensors: Vec<Part>,
}

/// One tensor of it: where the header speaks of it, and where its data are.
#[derive(Clone, Debug)]
struct Part {
    name: String,
    tensor: Tensor,
    text: Range<usize>,
    data: Range<usize>,
}

const DTYPES: [(&str, Dtype); 7] = [
    ("BF16", Dtype::Bf16),
    ("F16", Dtype::F16),
    ("F32", Dtype::F32),
    ("F64", Dtype::F64),
    ("I32", Dtype::I32),
    ("I64", Dtype::I64),
    ("U8", Dtype::U8),
];

fn built() -> impl Strategy<Value = Built> {
    let tensor = (0usize..DTYPES.len(), prop::collection::vec(0usize..4, 0..4));
    (prop::collection::vec(tensor, 0..5), any::<bool>(), any::<u8>())
        .prop_map(|(tensors, metadata, seed)| build(&tensors, metadata, seed))
}

fn build(tensors: &[(usize, Vec<usize>)], metadata: bool, seed: u8) -> Built {
    let mut header = String::from("{");
    if metadata {
        header.push_str("\"__metadata__\":{\"format\":\"pt\"}");
    }
    let (mut data, mut parts) = (Vec::new(), Vec::new());
    for (i, (dtype, shape)) in tensors.iter().enumerate() {
        if header.len() > 1 {
            header.push(',');
        }
        let (spelling, dtype) = DTYPES[*dtype];
        let start = data.len();
        let n = shape.iter().product::<usize>() * dtype.size();
        data.extend((0..n).map(|j| (j as u8).wrapping_mul(37).wrapping_add(seed) ^ i as u8));
        let (name, from) = (format!("t{i}"), header.len());
        header.push_str(&format!(
            "\"{name}\":{{\"dtype\":\"{spelling}\",\"shape\":{shape:?},\"data_offsets\":[{start},{}]}}",
            data.len()
        ));
        let tensor = Tensor::from_bytes(dtype, shape.clone(), data[start..].to_vec());
        parts.push(Part {
            name,
            tensor: tensor.expect("fits"),
            text: 8 + from..8 + header.len(),
            data: start..data.len(),
        });
    }
    header.push('}');
    let begin = 8 + header.len();
    for part in &mut parts {
        part.data = begin + part.data.start..begin + part.data.end;
    }
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    Built { bytes, tensors: parts }
}

/// Tensors of which no byte was touched are there, as they were; touched data are read as they are.
fn untouched_are_kept(built: &Built, mutated: &[u8], touched: &[usize]) {
    let Some(shard) = outcome(mutated) else { return };
    for part in &built.tensors {
        if touched.iter().any(|at| part.text.contains(at)) {
            continue;
        }
        let found = shard.get(&part.name).expect("its entry was not touched");
        assert_eq!((found.dtype(), found.shape()), (part.tensor.dtype(), part.tensor.shape()));
        assert_eq!(found.bytes(), &mutated[part.data.clone()]);
        if !touched.iter().any(|at| part.data.contains(at)) {
            assert_eq!(found, &part.tensor);
        }
    }
    let stated: usize = shard.tensors().values().map(|t| t.bytes().len()).sum();
    assert_eq!(stated as u64, shard.data_bytes());
    assert!(stated + 10 <= mutated.len());
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn what_was_built_is_read(built in built()) {
        let shard = outcome(&built.bytes).expect("a valid file");
        prop_assert_eq!(shard.tensors().len(), built.tensors.len());
        untouched_are_kept(&built, &built.bytes, &[]);
    }

    #[test]
    fn flipped_bits_leave_other_tensors_alone(built in built(), flips in prop::collection::vec((any::<Index>(), 0u8..8), 1..5)) {
        let (mut bytes, mut touched) = (built.bytes.clone(), Vec::new());
        for (at, bit) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            touched.push(at);
        }
        untouched_are_kept(&built, &bytes, &touched);
    }

    /// Digits and signs of the header exchanged for others: shapes and offsets that nearly fit.
    #[test]
    fn other_digits_leave_other_tensors_alone(built in built(), edits in prop::collection::vec((any::<Index>(), 0usize..13), 1..4)) {
        let digits: Vec<usize> = built.tensors.iter()
            .flat_map(|p| p.text.clone())
            .filter(|&at| built.bytes[at].is_ascii_digit())
            .collect();
        prop_assume!(!digits.is_empty());
        let (mut bytes, mut touched) = (built.bytes.clone(), Vec::new());
        for (at, to) in edits {
            let at = digits[at.index(digits.len())];
            bytes[at] = b"0123456789-.e"[to];
            touched.push(at);
        }
        untouched_are_kept(&built, &bytes, &touched);
    }

    #[test]
    fn any_other_length_is_refused(built in built(), at in any::<Index>(), byte: u8, how in 0usize..4) {
        let mut bytes = built.bytes.clone();
        let at = at.index(bytes.len());
        match how {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, byte),
            2 => { bytes.remove(at); }
            _ => bytes.extend(std::iter::repeat_n(byte, at + 1)),
        }
        prop_assert!(outcome(&bytes).is_none());
    }

    #[test]
    fn a_header_length_that_lies_is_refused(built in built(), lie in prop_oneof![any::<u64>(), 0u64..4000]) {
        let right = u64::from_le_bytes(built.bytes[..8].try_into().expect("8 bytes"));
        prop_assume!(lie != right);
        let mut bytes = built.bytes.clone();
        bytes[..8].copy_from_slice(&lie.to_le_bytes());
        prop_assert!(outcome(&bytes).is_none());
    }

    #[test]
    fn random_bytes_are_refused_or_consistent(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(outcome(&bytes).is_none(), "eight random bytes are no small length");
    }

    /// Entries with hostile numbers, names and dtypes: whatever is accepted covers the data exactly.
    #[test]
    fn hostile_entries_are_refused_or_consistent(entries in prop::collection::vec(entry(), 0..4), data in 0usize..40) {
        let header = format!("{{{}}}", entries.join(","));
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 7);
        if let Some(shard) = outcome(&bytes) {
            prop_assert_eq!(shard.tensors().len(), entries.len());
            for t in shard.tensors().values() {
                prop_assert_eq!(t.len() * t.dtype().size(), t.bytes().len());
                prop_assert!(t.bytes().iter().all(|b| *b == 7), "bytes of the data");
            }
            prop_assert_eq!(shard.data_bytes(), data as u64);
        }
    }
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0u64..9).prop_map(|n| n.to_string()),
        1 => any::<u64>().prop_map(|n| n.to_string()),
        1 => prop::sample::select(vec!["-1", "1.5", "1e3", "4294967296", "9223372036854775807",
            "18446744073709551615", "18446744073709551616", "\"8\"", "null", "[]"]).prop_map(String::from),
    ]
}

/// One entry of a header.
fn entry() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "a",
        "b",
        "c",
        "",
        "__metadata__",
        "\\u0000",
        "a\\nb",
        "é",
        "../a",
    ]);
    let dtype = prop::sample::select(vec![
        "U8", "U8", "U8", "I32", "BF16", "F64", "BOOL", "F8_E4M3", "F8_E5M2", "F4", "I4", "C64",
        "u8", "",
    ]);
    (name, dtype, prop::collection::vec(number(), 0..10), number(), number()).prop_map(
        |(name, dtype, shape, start, end)| {
            format!(
                "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}",
                shape.join(",")
            )
        },
    )
}

fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

/// Eight-bit floats are stored in one byte an element: read as such, or refused by name.
#[test]
fn dtypes_that_are_not_known_are_refused_by_name() {
    for dtype in
        ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "I8", "U16", "U64", "C64", "bf16", "\\u0000"]
    {
        let header = format!(
            "{{\"weight\":{{\"dtype\":\"{dtype}\",\"shape\":[8],\"data_offsets\":[0,8]}}}}"
        );
        match parse(&raw(&header, 8)) {
            Ok(shard) => {
                let t = shard.get("weight").expect("its name");
                assert_eq!((t.len(), t.bytes()), (8, &[0u8; 8][..]), "{dtype}");
            }
            Err(e) => {
                let text = e.to_string();
                assert!(text.starts_with("x.safetensors: tensor `weight`"), "{text}");
                assert!(
                    text.contains(&format!("`{dtype}`").replace("\\u0000", "\\0"))
                        || text.contains("dtype"),
                    "{text}"
                );
            }
        }
    }
}

/// Brackets nested as deep as the file is long, wherever JSON allows a value.
#[test]
fn deep_headers_are_refused() {
    for depth in [10, 127, 128, 129, 1000, 200_000] {
        for open in ["[", "{\"a\":"] {
            let deep = open.repeat(depth);
            for header in [
                format!("{{\"t\":{deep}"),
                format!("{{\"__metadata__\":{deep}"),
                format!("{{\"t\":{{\"dtype\":\"U8\",\"shape\":{deep}"),
                format!("{{\"t\":{{\"extra\":{deep}"),
                format!("{{\"__metadata__\":{{\"k\":{deep}"),
            ] {
                assert!(outcome(&raw(&header, 0)).is_none(), "{open} x {depth}");
            }
        }
    }
}

/// Products that wrap to the bytes given: 2^32 x 2^32 is 0 in 64 bits.
#[test]
fn shapes_whose_product_wraps_are_refused() {
    for (shape, end) in [
        ("[4294967296,4294967296]", 0),
        ("[4294967297,4294967297,4294967297]", 0),
        ("[9223372036854775808,2]", 0),
        ("[18446744073709551615,18446744073709551615]", 1),
        ("[0,18446744073709551615,18446744073709551615]", 0),
        ("[6148914691236517206,3]", 2),
    ] {
        let header =
            format!("{{\"t\":{{\"dtype\":\"U8\",\"shape\":{shape},\"data_offsets\":[0,{end}]}}}}");
        let text = parse(&raw(&header, end)).expect_err("refused").to_string();
        assert!(text.contains("tensor `t`") && text.contains("addressed"), "{text}");
    }
}

/// Two tensors at every distance from each other, named in either order: only side by side is right.
#[test]
fn gaps_and_overlaps_of_any_size_are_refused() {
    let entry = |name: &str, at: usize, n: usize| {
        format!(
            "\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{n}],\"data_offsets\":[{at},{}]}}",
            at + n
        )
    };
    for (a, b) in (1..5).flat_map(|a| (1..5).map(move |b| (a, b))) {
        for start in 0..a + 4 {
            let (first, second) = (entry("a", 0, a), entry("b", start, b));
            for header in [format!("{{{first},{second}}}"), format!("{{{second},{first}}}")] {
                for data in [a + b, (start + b).max(a)] {
                    let found = outcome(&raw(&header, data)).is_some();
                    assert_eq!(found, start == a, "{header} of {data} bytes");
                }
            }
        }
    }
}
