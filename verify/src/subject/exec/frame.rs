//! Frames: eight bytes of length, then a safetensors file whose metadata say what the frame is.

use std::collections::BTreeMap;
use std::path::Path;

use assay_reference::checkpoint::Shard;
use assay_reference::ops::Tensors;
use assay_reference::{Case, Dtype};
use serde::Serialize;

/// Version of the protocol.
pub(super) const VERSION: &str = "1";
/// Room for the header of a frame, in bytes.
pub(super) const HEADER_ROOM: u64 = 1 << 20;
/// Longest name and version of a subject, in characters.
const MAX_NAME: usize = 200;

/// What a child says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hello {
    /// What computes: `torch`, `mymodule:function`.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The ops that it takes.
    pub ops: Vec<String>,
    /// The case dtypes that it takes.
    pub dtypes: Vec<Dtype>,
    /// Where it computes: `cpu`, `cuda:0`.
    pub device: String,
    /// Whether it claims the conventions of a framework's eager ops.
    pub framework: bool,
    /// Versions of libraries, the device's name, the function that is called.
    pub details: BTreeMap<String, String>,
}

/// What a child wrote.
#[derive(Debug)]
pub(super) enum Frame {
    /// It is ready.
    Hello(Hello),
    /// The outputs of a case.
    Result {
        /// Of which.
        id: u64,
        /// By name, without `out.`.
        outputs: Tensors,
    },
    /// No outputs.
    Error {
        /// Of which case; 0 is none.
        id: u64,
        /// Whether the case is outside what it takes.
        unsupported: bool,
        /// `RuntimeError: ...`.
        what: String,
    },
}

/// Why a frame cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// It is of another version of the protocol.
    Version(String),
    /// It is not a frame.
    Frame(String),
}

/// The bytes of a `case` frame, length included.
///
/// # Errors
/// When the case cannot be written.
pub(super) fn case(case: &Case, id: u64) -> assay_reference::Result<Vec<u8>> {
    let id = id.to_string();
    let more = [("assay_exec", VERSION), ("frame", "case"), ("id", &id)];
    let more = more.into_iter().map(|(key, text)| (key.to_string(), text.to_string()));
    let body = case.to_bytes(&more.collect())?;
    let mut frame = (body.len() as u64).to_le_bytes().to_vec();
    frame.extend(body);
    Ok(frame)
}

/// Reads a frame without its length.
pub(super) fn parse(bytes: Vec<u8>) -> Result<Frame, Bad> {
    let bad = |what: String| Bad::Frame(what);
    let shard = Shard::parse(bytes, Path::new("frame")).map_err(|e| bad(e.to_string()))?;
    let meta = |key: &str| {
        let text = shard.metadata().get(key).cloned();
        text.ok_or_else(|| bad(format!("its metadata have no `{key}`")))
    };
    let version = meta("assay_exec")?;
    if version != VERSION {
        return Err(Bad::Version(version));
    }
    let id = || {
        let text = meta("id")?;
        text.parse::<u64>()
            .map_err(|_| bad(format!("`id`: expected a decimal integer, got `{text}`")))
    };
    match meta("frame")?.as_str() {
        "hello" => hello(&shard, &meta).map(Frame::Hello),
        "result" => {
            let mut outputs = Tensors::new();
            for (name, tensor) in shard.tensors() {
                let output = name.strip_prefix("out.").ok_or_else(|| {
                    bad(format!("tensor `{name}`: the names of outputs begin with `out.`"))
                })?;
                outputs.insert(output.into(), tensor.clone());
            }
            Ok(Frame::Result { id: id()?, outputs })
        }
        "error" => {
            let unsupported = match meta("kind")?.as_str() {
                "unsupported" => true,
                "failed" => false,
                other => {
                    let expected = "expected `unsupported` or `failed`";
                    return Err(bad(format!("`kind`: {expected}, got `{other}`")));
                }
            };
            let of = |key: &str| shard.metadata().get(key).map_or("", String::as_str);
            let what = [of("type"), of("message")].map(clean).join(": ");
            Ok(Frame::Error { id: id()?, unsupported, what })
        }
        other => Err(bad(format!("`frame`: expected `hello`, `result` or `error`, got `{other}`"))),
    }
}

fn hello(shard: &Shard, meta: &dyn Fn(&str) -> Result<String, Bad>) -> Result<Hello, Bad> {
    let bad = |key: &str, what: String| Bad::Frame(format!("`{key}`: {what}"));
    let name = |key: &str| {
        let text = meta(key)?;
        let good = (1..=MAX_NAME).contains(&text.chars().count())
            && text.trim() == text
            && !text.contains(char::is_control);
        let expected = || format!("expected a name of 1 to {MAX_NAME} characters, got {text:?}");
        if good { Ok(text.clone()) } else { Err(bad(key, expected())) }
    };
    let list = |key: &str| {
        let text = meta(key)?;
        serde_json::from_str::<Vec<String>>(&text)
            .map(|all| all.iter().map(|text| clean(text)).collect::<Vec<_>>())
            .map_err(|_| bad(key, format!("expected a JSON array of strings, got `{text}`")))
    };
    let dtype = |text: &String| {
        serde_json::from_value::<Dtype>(text.clone().into())
            .ok()
            .filter(|d| matches!(d, Dtype::Bf16 | Dtype::F16 | Dtype::F32 | Dtype::F64))
            .ok_or_else(|| bad("dtypes", format!("expected bf16, f16, f32 or f64, got `{text}`")))
    };
    // These may be left out by a child that was written by hand.
    let optional = |key: &str| shard.metadata().get(key).cloned();
    let details = optional("details").unwrap_or_else(|| "{}".into());
    let details: BTreeMap<String, String> = serde_json::from_str(&details)
        .map_err(|_| bad("details", format!("expected a JSON object of strings: {details}")))?;
    let framework = match optional("scope").as_deref() {
        None | Some("kernel") => false,
        Some("framework") => true,
        Some(other) => {
            let expected = "expected `kernel` or `framework`";
            return Err(bad("scope", format!("{expected}, got `{other}`")));
        }
    };
    Ok(Hello {
        framework,
        name: name("name")?,
        version: name("version")?,
        ops: list("ops")?,
        dtypes: list("dtypes")?.iter().map(dtype).collect::<Result<_, _>>()?,
        device: clean(&optional("device").unwrap_or_else(|| "cpu".into())),
        details: details.iter().map(|(key, text)| (clean(key), clean(text))).collect(),
    })
}

/// Text of a child as it may be printed: no control characters but ends of lines and tabs.
pub(super) fn clean(text: &str) -> String {
    let plain = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
    text.chars().map(plain).collect()
}

/// The first bytes of something that is no frame, as text and as numbers.
pub(super) fn first_bytes(bytes: &[u8]) -> String {
    let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("{:?} ({})", String::from_utf8_lossy(bytes), hex.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use assay_reference::Tensor;
    use assay_reference::checkpoint::to_bytes;

    fn framed(tensors: &[&str], metadata: &[(&str, &str)]) -> Vec<u8> {
        let tensors =
            tensors.iter().map(|n| (n.to_string(), Tensor::from_i32(&[2], &[1, 2]))).collect();
        let text = |(k, v): &(&str, &str)| (k.to_string(), v.to_string());
        to_bytes(&tensors, &metadata.iter().map(text).collect()).expect("bytes")
    }

    #[test]
    fn a_case_comes_back_from_its_frame() {
        let g = crate::families::power_cases("add", 1).remove(0);
        let frame = case(&g.case, 7).expect("a frame");
        let n = u64::from_le_bytes(frame[..8].try_into().expect("eight"));
        assert_eq!(n as usize, frame.len() - 8);
        let (read, metadata) =
            Case::from_bytes(frame[8..].to_vec(), Path::new("frame")).expect("a case");
        assert_eq!(read, g.case);
        assert_eq!((metadata["id"].as_str(), metadata["frame"].as_str()), ("7", "case"));
    }

    #[test]
    fn what_is_no_frame_is_refused_with_the_key() {
        let hello = [
            ("assay_exec", "1"),
            ("frame", "hello"),
            ("name", "n"),
            ("version", "2"),
            ("ops", "[\"add\"]"),
            ("dtypes", "[\"bf16\"]"),
        ];
        let Ok(Frame::Hello(read)) = parse(framed(&[], &hello)) else { panic!("a hello") };
        assert_eq!((read.dtypes, read.device.as_str()), (vec![Dtype::Bf16], "cpu"));
        let with = |key: &'static str, text: &'static str| {
            let mut edited = hello.to_vec();
            edited.retain(|(k, _)| *k != key);
            edited.push((key, text));
            parse(framed(&[], &edited)).expect_err(key)
        };
        assert_eq!(with("assay_exec", "2"), Bad::Version("2".into()));
        for (key, text) in [
            ("name", ""),
            ("name", "a\u{1b}[31m"),
            ("ops", "add"),
            ("dtypes", "[\"int8\"]"),
            ("details", "[]"),
            ("scope", "mine"),
            ("frame", "goodbye"),
        ] {
            let Bad::Frame(what) = with(key, text) else { panic!("{key}") };
            assert!(what.contains(&format!("`{key}`")), "{what}");
        }
        let result = [("assay_exec", "1"), ("frame", "result"), ("id", "x")];
        for (tensor, said) in [("out.output", "`id`"), ("output", "begin with `out.`")] {
            let Bad::Frame(what) = parse(framed(&[tensor], &result)).expect_err(said) else {
                panic!("{said}")
            };
            assert!(what.contains(said), "{what}");
        }
        assert!(matches!(parse(b"no safetensors at all".to_vec()), Err(Bad::Frame(_))));
    }
}
