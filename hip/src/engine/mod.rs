//! The Qwen2 and Qwen3 forward made only of this crate's kernels: weights in bf16 or 4-bit GPTQ, keys
//! and values in a paged cache, prefill in chunks and decode.
//!
//! An [`Engine`] asks its record of what was verified ([`Admit`]) for every kernel that the model could
//! need before it launches one, and refuses all of it when one is missing. It runs the same op calls as
//! the reference's [`Plan`]; where a kernel computes two of them, the value between them is never
//! stored. Each launch is shown to an observer as a case of its op with what it stored, so that it can
//! be judged by itself.

mod cache;
mod set;
mod steps;

use std::collections::BTreeMap;

use assay_reference::arith::Real;
use assay_reference::checkpoint::Checkpoint;
use assay_reference::ops::Tensors;
use assay_reference::ops::rope::Angle;
use assay_reference::qwen::plan::as_loaded;
use assay_reference::qwen::{Model, Node, Observer, Plan, Source};
use assay_reference::{Case, Dtype, Tensor};
use serde_json::{Value, json};

use self::cache::PagedCache;
pub use self::set::Kernels;
use self::steps::{Step, candidates, needed, steps};
use crate::admit::{Admit, Admitted};
use crate::error::Error;
use crate::finding::{LaunchReport, LaunchStatus};
use crate::kernels::{Kernel, kernel};
use crate::options::LaunchOptions;

/// One launch of an engine.
#[derive(Clone, Debug)]
pub struct EngineLaunch<'a> {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// The probe of the last op that it computes: `layers.0.q_rope`.
    pub probe: &'a str,
    /// Its inputs as a case of its op.
    pub case: Case,
    /// What it stored, by the op's output names; of a launch that did not complete, of no meaning.
    pub outputs: Vec<(&'static str, Tensor)>,
    /// How it ended.
    pub report: LaunchReport,
}

/// Sees every launch.
pub type LaunchObserver<'o> = dyn FnMut(&EngineLaunch<'_>) + 'o;

/// A model on kernels.
pub struct Engine<'a> {
    checkpoint: &'a Checkpoint,
    plan: Plan,
    steps: Vec<Step>,
    /// Weight arguments by node.
    weights: Vec<Tensors>,
    admitted: BTreeMap<&'static str, Admitted<'a>>,
    /// By layer.
    caches: BTreeMap<usize, PagedCache>,
    position: usize,
    /// Set while tokens are appended: an error leaves the caches with a part of them.
    torn: bool,
    options: LaunchOptions,
    watch: Option<Box<LaunchObserver<'a>>>,
}

/// What a call has computed so far: tensors by probe, [T, width].
type Live = BTreeMap<String, Tensor>;

impl<'a> Engine<'a> {
    /// Prepares a model at position 0.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model with an op that no kernel computes, [`Error::NotAdmitted`] with
    /// every kernel that `record` does not admit, and what keeps the checkpoint from being read.
    pub fn new(
        checkpoint: &'a Checkpoint,
        kernels: &'a Kernels,
        record: &dyn Admit,
        options: LaunchOptions,
    ) -> Result<Self, Error> {
        let plan = Plan::new(checkpoint.config(), Angle::F32);
        let steps = steps(&plan)?;
        let admitted = admitted(&needed(&plan, &steps)?, kernels, record)?;
        let mut weights = Vec::with_capacity(plan.nodes.len());
        for node in &plan.nodes {
            let mut tensors = Tensors::new();
            for (arg, source) in &node.inputs {
                if let Source::Weight(name) = source {
                    let loaded = as_loaded(checkpoint.tensor(name)?, arg, Dtype::Bf16);
                    tensors.insert(arg.to_string(), loaded);
                }
            }
            weights.push(tensors);
        }
        let caches = BTreeMap::new();
        let position = 0;
        Ok(Engine {
            checkpoint,
            plan,
            steps,
            weights,
            admitted,
            caches,
            position,
            torn: false,
            options,
            watch: None,
        })
    }

    /// The same engine, whose launches `watch` sees.
    #[must_use]
    pub fn watched(mut self, watch: impl FnMut(&EngineLaunch<'_>) + 'a) -> Self {
        self.watch = Some(Box::new(watch));
        self
    }

    /// The op calls that it runs.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The kernels that it may launch, with the grounds of their admission.
    pub fn admissions(&self) -> impl Iterator<Item = &crate::Admission> {
        self.admitted.values().map(Admitted::admission)
    }

    /// Appends tokens and returns their logits, [T, vocab] in bf16. `observe` sees what is stored of
    /// every op call.
    ///
    /// # Errors
    /// When a token is outside the vocabulary, a launch does not end well, or an earlier call ended so.
    pub fn append(
        &mut self,
        ids: &[u32],
        observe: &mut dyn FnMut(&Node, &Tensor),
    ) -> Result<Tensor, Error> {
        check(self.checkpoint, ids)?;
        if std::mem::replace(&mut self.torn, true) {
            let what = "a call after one that failed: its cache holds a part of those tokens";
            return Err(Error::Unsupported(format!("{what}; make a new engine")));
        }
        let mut live = Live::new();
        for index in 0..self.steps.len() {
            let step = self.steps[index].clone();
            let made = match step {
                Step::Node(node) => self.node(node, ids, &live)?,
                Step::AddNorm { add, norm } => self.add_norm(add, norm, ids, &live)?,
                Step::NormRope { norm, rope } => self.norm_rope(norm, rope, ids, &live)?,
                Step::Attention(node) => self.attention(node, ids, &live)?,
            };
            for (node, tensor) in made {
                observe(&self.plan.nodes[node], &tensor);
                live.insert(self.plan.nodes[node].probe.clone(), tensor);
            }
        }
        self.position += ids.len();
        self.torn = false;
        live.remove("logits").ok_or_else(|| Error::Unsupported("its plan makes no logits".into()))
    }

    /// The tensor arguments of a node.
    fn inputs(&self, node: usize, ids: &[u32], live: &Live) -> Result<Tensors, Error> {
        let mut tensors = self.weights[node].clone();
        let node = &self.plan.nodes[node];
        for (arg, source) in &node.inputs {
            let tensor = match source {
                // Keys and values of earlier calls lie in the cache.
                Source::Probe(probe, view) | Source::History(probe, view) => {
                    let made = live.get(probe).ok_or_else(|| {
                        Error::Unsupported(format!("`{probe}` is read and never stored"))
                    })?;
                    made.reshape(&view.shape(ids.len(), made.len() / ids.len()))?
                }
                Source::Tokens => integers(ids.iter().map(|&id| id as usize)),
                Source::Positions => self.positions(ids.len()),
                Source::Weight(_) => continue,
                Source::Part(name, _) => {
                    return Err(Error::Unsupported(format!("{name} is split over ranks")));
                }
            };
            tensors.insert(arg.to_string(), tensor);
        }
        Ok(tensors)
    }

    fn positions(&self, t: usize) -> Tensor {
        integers(self.position..self.position + t)
    }

    /// One op call, one launch.
    fn node(
        &mut self,
        node: usize,
        ids: &[u32],
        live: &Live,
    ) -> Result<Vec<(usize, Tensor)>, Error> {
        let tensors = self.inputs(node, ids, live)?;
        let Node { op, params, .. } = &self.plan.nodes[node];
        let case = case(op, params.clone(), tensors);
        let mut outputs = self.launch(node, case)?;
        Ok(vec![(node, outputs.remove(0).1)])
    }

    /// The residual addition and the norm behind it.
    fn add_norm(
        &mut self,
        add: usize,
        norm: usize,
        ids: &[u32],
        live: &Live,
    ) -> Result<Vec<(usize, Tensor)>, Error> {
        let mut tensors = self.inputs(add, ids, live)?;
        tensors.extend(self.weights[norm].clone());
        let params = json!({ "norm": self.plan.nodes[norm].params });
        let outputs = self.launch(norm, case("add_rms_norm", params, tensors))?;
        let mut made = Vec::new();
        for (name, tensor) in outputs {
            made.push((if name == "residual" { add } else { norm }, tensor));
        }
        Ok(made)
    }

    /// The norm of each head and its rotation.
    fn norm_rope(
        &mut self,
        norm: usize,
        rope: usize,
        ids: &[u32],
        live: &Live,
    ) -> Result<Vec<(usize, Tensor)>, Error> {
        let mut tensors = self.inputs(norm, ids, live)?;
        tensors.insert("positions".into(), self.positions(ids.len()));
        let nodes = &self.plan.nodes;
        let params = json!({ "norm": nodes[norm].params, "rope": nodes[rope].params });
        let mut outputs = self.launch(rope, case("qk_norm_rope", params, tensors))?;
        Ok(vec![(rope, outputs.remove(0).1)])
    }

    /// Writes keys and values into the layer's cache and attends to all of it: a single query through
    /// the cache's blocks, more of them over the gathered keys.
    fn attention(
        &mut self,
        node: usize,
        ids: &[u32],
        live: &Live,
    ) -> Result<Vec<(usize, Tensor)>, Error> {
        let mut tensors = self.inputs(node, ids, live)?;
        let params = self.plan.nodes[node].params.clone();
        let layer = self.plan.nodes[node].layer.unwrap_or(0);
        let argument = |tensors: &mut Tensors, name: &str| {
            let tensor = tensors.remove(name);
            tensor.ok_or_else(|| Error::Unsupported(format!("attention without `{name}`")))
        };
        let (q, k, v) = (
            argument(&mut tensors, "q")?,
            argument(&mut tensors, "k")?,
            argument(&mut tensors, "v")?,
        );
        let mut cache = match self.caches.remove(&layer) {
            Some(cache) => cache,
            None => PagedCache::new(k.shape()),
        };
        let slots = cache.append(ids.len());
        let [k_cache, v_cache] = cache.tensors();
        let written = Tensors::from([
            ("k".to_owned(), k),
            ("v".to_owned(), v),
            ("k_cache".to_owned(), k_cache),
            ("v_cache".to_owned(), v_cache),
            ("slot_mapping".to_owned(), integers(slots.into_iter())),
        ]);
        let outputs = self.launch(node, case("kv_store", json!({}), written))?;
        for (name, tensor) in outputs {
            cache.replace(name == "k_cache", tensor);
        }
        let attended = if ids.len() == 1 {
            let [k_cache, v_cache] = cache.tensors();
            let paged = Tensors::from([
                ("q".to_owned(), q),
                ("k_cache".to_owned(), k_cache),
                ("v_cache".to_owned(), v_cache),
                ("block_table".to_owned(), integers(cache.table().iter().copied())),
                ("context_len".to_owned(), integers(std::iter::once(cache.len()))),
            ]);
            case("attention_paged", json!({ "attention": params }), paged)
        } else {
            let [k, v] = cache.gathered()?;
            let tensors =
                Tensors::from([("q".to_owned(), q), ("k".to_owned(), k), ("v".to_owned(), v)]);
            case("attention", params, tensors)
        };
        self.caches.insert(layer, cache);
        let mut outputs = self.launch(node, attended)?;
        Ok(vec![(node, outputs.remove(0).1)])
    }

    /// Launches the first kernel of the case's op that takes it.
    fn launch(&mut self, node: usize, case: Case) -> Result<Vec<(&'static str, Tensor)>, Error> {
        let probe = self.plan.nodes[node].probe.clone();
        let (kernel, launched) = {
            let mut refused = None;
            let mut chosen = None;
            for name in candidates(&case.op) {
                let Some(kernel) = kernel(name) else { continue };
                match kernel.accepts(&case) {
                    Ok(()) => {
                        chosen = Some(kernel);
                        break;
                    }
                    Err(e) => refused = Some(e),
                }
            }
            let Some(kernel) = chosen else {
                let why = refused.map_or_else(|| "there is none".to_owned(), |e| e.to_string());
                return Err(Error::Unsupported(format!(
                    "no kernel takes {probe} ({}): {why}",
                    case.op
                )));
            };
            let admitted = self.admitted.get(kernel.name);
            let admitted = admitted.expect("every candidate was admitted");
            (kernel, admitted.launch(&case, &self.options)?)
        };
        let (status, findings) = (launched.report.status, launched.report.findings.clone());
        let outputs = launched.outputs.clone();
        if let Some(watch) = &mut self.watch {
            let launch = EngineLaunch {
                kernel,
                probe: &probe,
                case,
                outputs: launched.outputs,
                report: launched.report,
            };
            watch(&launch);
        }
        if status != LaunchStatus::Completed {
            let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
            let what = format!("{status:?} {}", findings.join("; "));
            return Err(Error::Launch { kernel: kernel.name, probe, what });
        }
        Ok(outputs)
    }
}

impl<R: Real> Model<R> for Engine<'_> {
    fn vocab(&self) -> usize {
        self.checkpoint.config().vocab_size
    }

    fn check(&self, ids: &[u32]) -> assay_reference::Result<()> {
        check(self.checkpoint, ids)
    }

    fn step(
        &mut self,
        ids: &[u32],
        observer: &mut Observer<'_, R>,
    ) -> assay_reference::Result<Vec<R>> {
        let lifted = |t: &Tensor| -> Vec<R> { t.to_f64().into_iter().map(R::lift).collect() };
        let logits = self
            .append(ids, &mut |node, tensor| observer(node, &lifted(tensor)))
            .map_err(|e| assay_reference::Error::Request(e.to_string()))?;
        Ok(lifted(&logits))
    }
}

fn check(checkpoint: &Checkpoint, ids: &[u32]) -> assay_reference::Result<()> {
    let request = assay_reference::Error::Request;
    if ids.is_empty() {
        return Err(request("the prompt is empty: there is no token to run".into()));
    }
    let vocab = checkpoint.config().vocab_size;
    match ids.iter().find(|&&id| id as usize >= vocab) {
        Some(id) => Err(request(format!("token id {id} is beyond the vocabulary of {vocab}"))),
        None => Ok(()),
    }
}

/// Asks for every kernel, and lists all that are refused.
fn admitted<'a>(
    names: &[&'static str],
    kernels: &'a Kernels,
    record: &dyn Admit,
) -> Result<BTreeMap<&'static str, Admitted<'a>>, Error> {
    let (mut out, mut refused) = (BTreeMap::new(), Vec::new());
    for &name in names {
        let Some(kernel) = kernel(name) else { continue };
        let backend = kernels.backend(kernel).ok_or(Error::NotLaunched)?;
        match Admitted::new(kernel, backend, record) {
            Ok(admitted) => {
                out.insert(name, admitted);
            }
            Err(Error::Refused(refusal)) => refused.push(refusal),
            Err(e) => return Err(e),
        }
    }
    if refused.is_empty() { Ok(out) } else { Err(Error::NotAdmitted(refused)) }
}

fn case(op: &str, params: Value, tensors: Tensors) -> Case {
    Case {
        op: op.to_owned(),
        params,
        dtype: Dtype::Bf16,
        tensors,
        outputs: Tensors::new(),
        family: "engine".into(),
        seed: 0,
    }
}

fn integers(values: impl Iterator<Item = usize>) -> Tensor {
    let values: Vec<i32> = values.map(|x| x as i32).collect();
    Tensor::from_i32(&[values.len()], &values)
}
