//! The tensors in the files against those that the config implies.

use std::collections::BTreeSet;

use super::hints::{hints, implied};
use crate::checkpoint::config::{Config, Quantization};
use crate::checkpoint::expected::{Expected, Kind};
use crate::checkpoint::index::Files;
use crate::checkpoint::{list, plural, zeros};
use crate::error::{Error, Result};
use crate::ops::packed;
use crate::tensor::Tensor;

const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

/// Checks the files against `expected`; gives warnings. Wrong shapes are reported before missing
/// tensors, because they tell more about a wrong config.
pub(super) fn check(config: &Config, files: &Files, expected: &[Expected]) -> Result<Vec<String>> {
    for e in expected {
        if let Some(tensor) = files.get(&e.name) {
            check_form(config, files, e, tensor)?;
        }
    }
    check_missing(config, files, expected)?;
    let mut warnings = Vec::new();
    check_unread(config, files, expected, &mut warnings)?;
    check_sizes(files, expected)?;
    check_groups(config, files, expected, &mut warnings)?;
    warnings.extend(zeros::wrong_label(config, files, expected));
    note_zeros(config, files, expected, &mut warnings);
    note_dtypes(config, files, expected, &mut warnings);
    Ok(warnings)
}

/// How many times as many tensors as there are a config may ask for and still be told by name which
/// of them are missing.
const FAR_OFF: usize = 8;

/// Refuses a config that asks for many times as many tensors as there are, before they are listed: a
/// few bytes of config.json must not ask for gigabytes of memory.
pub(super) fn check_size(config: &Config, files: &Files) -> Result<()> {
    let held = files.names().count();
    let of_layer = |layer: usize| config.moe_of(layer).map_or(7, |moe| 3 * moe.num_experts);
    let least: usize = (0..config.num_hidden_layers).map(of_layer).sum();
    if least <= FAR_OFF * (held + 1) {
        return Ok(());
    }
    let experts = config
        .moe
        .as_ref()
        .map_or(String::new(), |moe| format!(" and `num_experts` {}", moe.num_experts));
    Err(Error::file(
        files.dir().join("config.json"),
        format!(
            "`num_hidden_layers` {}{experts} ask for {least} tensors or more, but the files hold \
             {held}{}: the config does not belong to these weights",
            config.num_hidden_layers,
            hints(config, files)
        ),
    ))
}

/// Shape and dtype of one tensor.
fn check_form(config: &Config, files: &Files, e: &Expected, tensor: &Tensor) -> Result<()> {
    let fail = |what: String| Err(Error::tensor(files.path_of(&e.name), &e.name, what));
    if tensor.shape() != e.shape {
        return fail(format!(
            "expected shape {:?} by config.json, found {:?}{}; correct config.json, or use the \
             config that belongs to these weights{}",
            e.shape,
            tensor.shape(),
            implied(config, e, tensor),
            hints(config, files)
        ));
    }
    if !e.kind.allows(tensor.dtype()) {
        return fail(format!(
            "expected {}, found {}: the tensor was converted, or belongs to another model; \
             convert the checkpoint again",
            e.kind,
            tensor.dtype()
        ));
    }
    Ok(())
}

fn check_missing(config: &Config, files: &Files, expected: &[Expected]) -> Result<()> {
    let missing: Vec<&Expected> =
        expected.iter().filter(|e| files.get(&e.name).is_none()).collect();
    let Some(first) = missing.first() else { return Ok(()) };
    let others = match missing.len() - 1 {
        0 => String::new(),
        n => format!(
            "; {} missing as well: {}",
            plural(n, "other tensor"),
            list(missing[1..].iter().map(|e| e.name.as_str()))
        ),
    };
    let head = match first.name.as_str() {
        HEAD => "; if this model's head is its embedding, tie_word_embeddings must be true",
        _ => "",
    };
    Err(Error::tensor(
        files.dir(),
        &first.name,
        format!(
            "is missing; {} needs it with shape {:?} as {}{others}{head}{}",
            config.architecture,
            first.shape,
            first.kind,
            hints(config, files)
        ),
    ))
}

/// Tensors that nothing reads: each is a finding unless it is known to carry nothing.
fn check_unread(
    config: &Config,
    files: &Files,
    expected: &[Expected],
    warnings: &mut Vec<String>,
) -> Result<()> {
    let read: BTreeSet<&str> = expected.iter().map(|e| e.name.as_str()).collect();
    let (mut unread, mut zero, mut frequencies) = (Vec::new(), Vec::new(), Vec::new());
    for name in files.names().filter(|n| !read.contains(n)) {
        if name == HEAD && config.tie_word_embeddings {
            check_tied(files)?;
            warnings.push(format!("`{HEAD}` repeats the embedding to which the head is tied"));
        } else if name.ends_with("rotary_emb.inv_freq") {
            frequencies.push(name);
        } else if is_spare_bias(config, files, name) && files.get(name).is_some_and(is_zero) {
            zero.push(name);
        } else {
            unread.push(name);
        }
    }
    for (names, what) in [
        (zero, "not read, because the architecture has no such bias; all are zero"),
        (frequencies, "not read: the frequencies follow from rope_theta"),
    ] {
        if !names.is_empty() {
            let shown = list(names.iter().copied());
            warnings.push(format!("{} {what}: {shown}", plural(names.len(), "tensor")));
        }
    }
    if unread.is_empty() {
        return Ok(());
    }
    let bias = match unread.iter().any(|n| n.ends_with(".bias")) {
        true => "; a bias left out changes every number after it",
        false => "",
    };
    Err(Error::file(
        files.path_of(unread[0]),
        format!(
            "holds {} that {} never reads: {}{bias}{}. Correct config.json, or remove the \
             tensors if they do not belong to the model",
            plural(unread.len(), "tensor"),
            config.architecture,
            list(unread.iter().copied()),
            hints(config, files)
        ),
    ))
}

/// A head that is stored although it is tied must be the embedding.
fn check_tied(files: &Files) -> Result<()> {
    if files.get(HEAD) == files.get(EMBEDDING) {
        return Ok(());
    }
    Err(Error::tensor(
        files.path_of(HEAD),
        HEAD,
        format!(
            "tie_word_embeddings is true, but this tensor differs from `{EMBEDDING}`: engines \
             that read it give other logits than those that do not. Either tie_word_embeddings \
             must be false or the tensor removed"
        ),
    ))
}

/// Whether `name` is the bias of a quantised layer: quantisers write one for every layer.
fn is_spare_bias(config: &Config, files: &Files, name: &str) -> bool {
    let (Some(quant), Some(path)) = (&config.quantization, name.strip_suffix(".bias")) else {
        return false;
    };
    let stored = |part: &str| files.get(&format!("{path}.{part}")).is_some();
    quant.covers(path) && quant.parts([1, 1]).iter().all(|(part, ..)| stored(part))
}

fn is_zero(t: &Tensor) -> bool {
    t.to_f64().iter().all(|&x| x == 0.0)
}

/// Group indices: within range, and as the quantisation's description says.
fn check_groups(
    config: &Config,
    files: &Files,
    expected: &[Expected],
    warnings: &mut Vec<String>,
) -> Result<()> {
    let Some(quantization) = &config.quantization else { return Ok(()) };
    let (size, sorted_by_config) = match quantization {
        Quantization::Gptq(q) => (q.group_size, !q.desc_act),
        Quantization::CompressedTensors(q) => (q.group_size, false),
        // These have no index.
        Quantization::Awq(_) | Quantization::Fp8(_) => return Ok(()),
    };
    let (mut unsorted, mut uneven) = (Vec::new(), Vec::new());
    for e in expected {
        let (Kind::GroupIndex { groups }, Some(tensor)) = (e.kind, files.get(&e.name)) else {
            continue;
        };
        let size = size.unwrap_or(tensor.len());
        let mut members = vec![0usize; groups];
        let mut sorted = true;
        for k in 0..tensor.len() {
            let g = tensor.get_i64(k);
            let Some(count) = usize::try_from(g).ok().and_then(|g| members.get_mut(g)) else {
                return Err(Error::tensor(
                    files.path_of(&e.name),
                    &e.name,
                    format!(
                        "input row {k} has group {g}, but groups go from 0 to {} ({} rows in \
                         groups of {size}): group_size is wrong or the tensor is damaged",
                        groups - 1,
                        tensor.len()
                    ),
                ));
            };
            *count += 1;
            sorted &= g as usize == k / size;
        }
        if !sorted && sorted_by_config {
            unsorted.push(e.name.as_str());
        }
        if members.iter().any(|&n| n > size) {
            uneven.push(e.name.as_str());
        }
    }
    for (names, what) in [
        (
            unsorted,
            "desc_act is false, but not every row k has group k / group_size; the groups are \
             used as stored, while engines that trust desc_act ignore them",
        ),
        (uneven, "some groups have more rows than group_size; the groups are used as stored"),
    ] {
        if !names.is_empty() {
            warnings.push(format!("{}: {what}", list(names)));
        }
    }
    Ok(())
}

/// The sizes that packed weights state must be those that the config implies.
fn check_sizes(files: &Files, expected: &[Expected]) -> Result<()> {
    for e in expected {
        let (Kind::Sizes { n, k }, Some(tensor)) = (e.kind, files.get(&e.name)) else { continue };
        let found = [tensor.get_i64(0), tensor.get_i64(1)];
        if found != [n as i64, k as i64] {
            return Err(Error::tensor(
                files.path_of(&e.name),
                &e.name,
                format!(
                    "states a weight of {found:?}, but config.json implies [{n}, {k}] (outputs and \
                     inputs): the layer was packed for another model, or config.json is wrong"
                ),
            ));
        }
    }
    Ok(())
}

/// Notes zero points that a description without them does not expect: they are read as stored, while
/// some engines' kernels for symmetric weights never look at them.
fn note_zeros(config: &Config, files: &Files, expected: &[Expected], warnings: &mut Vec<String>) {
    let (bits, zero, field) = match &config.quantization {
        Some(Quantization::Gptq(q)) if q.sym => (q.bits, q.symmetric_zero(), "sym is true"),
        Some(Quantization::Awq(q)) if !q.zero_point => (4, 8, "zero_point is false"),
        _ => return,
    };
    let labelled_wrong = |t: &Tensor| match &config.quantization {
        Some(Quantization::Gptq(q)) => zeros::is_other_symmetric(q.bits, q.format, t),
        _ => false,
    };
    let differs = |t: &Tensor| {
        let values = packed::values(t.cols(), bits).unwrap_or(0);
        (0..t.rows()).any(|row| {
            let word = |w: usize| t.get_i64(row * t.cols() + w);
            (0..values).any(|i| packed::Reading::plain(bits).value(i, word) != i64::from(zero))
        })
    };
    let names: Vec<&str> = expected
        .iter()
        .map(|e| e.name.as_str())
        .filter(|n| n.ends_with(".qzeros"))
        .filter(|n| files.get(n).is_some_and(|t| differs(t) && !labelled_wrong(t)))
        .collect();
    if !names.is_empty() {
        warnings.push(format!(
            "{}: {field}, but not every zero point is {zero} as a symmetric one is stored; they are \
             used as stored, while engines that trust the field may ignore them",
            list(names)
        ));
    }
}

/// Notes float tensors stored in another dtype than the config's.
fn note_dtypes(config: &Config, files: &Files, expected: &[Expected], warnings: &mut Vec<String>) {
    let differs = |e: &&Expected| {
        e.kind == Kind::Float && files.get(&e.name).is_some_and(|t| t.dtype() != config.dtype)
    };
    let names: Vec<&str> = expected.iter().filter(differs).map(|e| e.name.as_str()).collect();
    if !names.is_empty() {
        warnings.push(format!(
            "{} not stored as {}, the config's dtype: {}; a forward in 16 bits casts them, as engines \
             do when loading",
            plural(names.len(), "tensor"),
            config.dtype,
            list(names.iter().copied())
        ));
    }
}
