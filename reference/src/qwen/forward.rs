//! Runs a plan over `f32` or `f64`, with a KV cache.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::arith::{Real, fenv::DefaultEnv};
use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ops::{Arg, Basis, Inputs, Tensors};
use crate::qwen::jitter::Jitter;
use crate::qwen::plan::{Node, Plan, Source, View, as_loaded};
use crate::qwen::preset::Preset;
use crate::qwen::shard::Ranks;
use crate::qwen::variant::{Positions, Wiring};
use crate::tensor::Tensor;

/// Sees every probe of a step: the node and its output, row-major. It is called from a thread of the pool.
pub type Observer<'o, R> = dyn FnMut(&Node, &[R]) + Send + 'o;

/// A forward in progress: the plan, its weights and the keys and values so far.
///
/// Every row's result depends only on the tokens up to it, bit for bit: a prompt in one step, in
/// chunks or token by token gives the same bits. Under dynamic rope scaling it also depends on where
/// calls end (see [`rope`](mod@crate::ops::rope)).
#[derive(Debug)]
pub struct Forward<'c, R> {
    checkpoint: &'c Checkpoint,
    plan: Plan,
    preset: &'static Preset,
    /// Weight arguments by node index.
    weights: Vec<Tensors>,
    history: BTreeMap<String, Vec<R>>,
    position: usize,
    /// Where each call so far began.
    starts: Vec<usize>,
    positions: Positions,
    forgets: bool,
    only_last: bool,
    streamed: bool,
    watched: bool,
    /// Whether the weights are as the preset's dtype has them.
    loaded: bool,
    jitter: Option<Jitter>,
}

/// Values of probes that a plan reads and does not make: each with its width.
pub type Given<'g, R> = BTreeMap<&'g str, (Vec<R>, usize)>;

impl<'c, R: Basis> Forward<'c, R> {
    /// Prepares a forward at position 0.
    ///
    /// # Errors
    /// When a weight is missing.
    pub fn new(checkpoint: &'c Checkpoint, preset: &'static Preset) -> Result<Self> {
        Forward::wired(checkpoint, preset, Plan::new(checkpoint.config(), preset.angle).into())
    }

    /// The same for the model split over `ranks`, each with its own part of the weights.
    ///
    /// # Errors
    /// When a weight is missing, or the model does not split evenly.
    pub fn split(
        checkpoint: &'c Checkpoint,
        preset: &'static Preset,
        ranks: impl Into<Ranks>,
    ) -> Result<Self> {
        let plan = Plan::split(checkpoint.config(), preset.angle, ranks.into())?;
        Forward::wired(checkpoint, preset, plan.into())
    }

    /// The same for a forward put together in any way, right or wrong.
    ///
    /// # Errors
    /// When a weight is missing or cannot be made.
    pub fn wired(
        checkpoint: &'c Checkpoint,
        preset: &'static Preset,
        wiring: Wiring,
    ) -> Result<Self> {
        let Wiring { plan, made, positions, forgets } = wiring;
        let stored = |name: &str| match made.get(name) {
            Some(make) => make(checkpoint),
            None => checkpoint.tensor(name),
        };
        let mut weights = Vec::with_capacity(plan.nodes.len());
        let mut history = BTreeMap::new();
        for node in &plan.nodes {
            let mut tensors = Tensors::new();
            for (arg, source) in &node.inputs {
                match source {
                    Source::Weight(name) => {
                        tensors.insert(arg.to_string(), stored(name)?);
                    }
                    Source::Part(name, cut) => {
                        tensors.insert(arg.to_string(), cut.of(&checkpoint.tensor(name)?));
                    }
                    Source::History(probe, _) => {
                        history.insert(probe.clone(), Vec::new());
                    }
                    Source::Probe(..) | Source::Tokens | Source::Positions => {}
                }
            }
            weights.push(tensors);
        }
        Ok(Forward {
            checkpoint,
            plan,
            preset,
            weights,
            history,
            position: 0,
            starts: Vec::new(),
            positions,
            forgets,
            only_last: false,
            streamed: false,
            watched: false,
            loaded: false,
            jitter: None,
        })
    }

    /// The same forward with every op's inputs moved by as much as another legitimate order of its
    /// sums would move its result (see [`Jitter`]).
    #[must_use]
    pub fn jittered(mut self, jitter: Jitter) -> Self {
        self.jitter = Some(jitter);
        self
    }

    /// The same forward, of which each step makes the logits of its last token only.
    #[must_use]
    pub fn with_last_logits(mut self) -> Self {
        self.only_last = true;
        self
    }

    /// The same forward with the weights of one layer in memory at a time, those of the next one being
    /// read: for models that are larger than memory. Of a large head so many rows are in memory as
    /// [`HEAD_BYTES`] hold. Each step reads the whole model.
    #[must_use]
    pub fn streamed(mut self) -> Self {
        self.streamed = true;
        self
    }

    /// The same forward, which looks for NaN and infinities in weights before it first uses them:
    /// [`Checkpoint::scan_finite`] for a streamed one.
    #[must_use]
    pub fn watched(mut self) -> Self {
        self.watched = true;
        self
    }

    /// Tokens seen so far.
    pub fn position(&self) -> usize {
        self.position
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Appends tokens and returns their logits, [T, vocab]; [1, vocab] after
    /// [`Forward::with_last_logits`].
    ///
    /// # Errors
    /// When there is no token, or one is outside the vocabulary.
    pub fn step(&mut self, ids: &[u32], observer: &mut Observer<'_, R>) -> Result<Vec<R>> {
        self.step_from(ids, Given::new(), observer)
    }

    /// The same for a plan that begins behind the embedding: `given` holds what it reads and does not
    /// make, for these tokens. The result is empty when the plan makes no logits.
    ///
    /// # Errors
    /// As [`Forward::step`], and when something that the plan reads is not given.
    pub fn step_from<'s>(
        &'s mut self,
        ids: &[u32],
        given: Given<'s, R>,
        observer: &mut Observer<'_, R>,
    ) -> Result<Vec<R>> {
        self.check(ids)?;
        // On a thread of the pool from end to end: entering it for each op would take as long as a small op.
        rayon::scope(|_| self.run(ids, given, observer))
    }

    fn run<'s>(
        &'s mut self,
        ids: &[u32],
        given: Given<'s, R>,
        observer: &mut Observer<'_, R>,
    ) -> Result<Vec<R>> {
        let _env = DefaultEnv::enter();
        if !(self.streamed || self.loaded) {
            for tensors in &mut self.weights {
                load(tensors, self.preset.dtype);
            }
            self.loaded = true;
        }
        let t = ids.len();
        let tokens: Vec<i32> = ids.iter().map(|&i| i as i32).collect();
        self.starts.push(self.position);
        let first = self.positions.first(&self.starts);
        let positions: Vec<i32> = (first..first + t as i64).map(|p| p as i32).collect();
        if self.forgets {
            self.history.values_mut().for_each(Vec::clear);
        }
        let mut integers = Tensors::new();
        integers.insert("ids".into(), Tensor::from_i32(&[t], &tokens));
        integers.insert("positions".into(), Tensor::from_i32(&[t], &positions));

        let mut live: BTreeMap<&str, (Vec<R>, usize)> = given;
        let last_use = last_uses(&self.plan);
        let mut logits = Vec::new();
        for (index, node) in self.plan.nodes.iter().enumerate() {
            let mut stored = self.weights[index].clone();
            if self.streamed {
                self.arrive(index)?;
                load(&mut stored, self.preset.dtype);
            }
            for (arg, source) in &node.inputs {
                if let (Source::Tokens | Source::Positions, Some(v)) =
                    (source, integers.get(arg.as_ref()))
                {
                    stored.insert(arg.to_string(), v.clone());
                }
            }
            let mut inputs = Inputs::stored(&stored);
            for (arg, source) in &node.inputs {
                let made = match source {
                    Source::Probe(probe, view) => {
                        let (data, width) = live.get(probe.as_str()).ok_or_else(|| {
                            let what = format!("the plan reads `{probe}` before it is made");
                            Error::Request(what)
                        })?;
                        // What comes after the last norm is the logits' alone.
                        let only_last = self.only_last && probe == LAST_NORM;
                        let data = if only_last { &data[data.len() - width..] } else { data };
                        borrowed(data, *width, *view)
                    }
                    Source::History(probe, view) => {
                        let width = self.plan.node(probe).map_or(1, |n| n.width);
                        borrowed(&self.history[probe], width, *view)
                    }
                    Source::Weight(_) | Source::Part(..) | Source::Tokens | Source::Positions => {
                        continue;
                    }
                };
                let made = match &mut self.jitter {
                    Some(jitter) => jitter.moved(node.op, made, self.position + t, R::BITS),
                    None => made,
                };
                inputs = inputs.with(arg, made);
            }
            let out = match self.streamed && node.probe == "logits" {
                true => by_pieces(node, self.preset, &inputs, &stored)?,
                false => R::run(node, self.preset, &inputs, &stored)?,
            };
            drop(inputs);
            if self.streamed {
                self.weights[index].values().for_each(Tensor::release);
            }
            observer(node, &out);
            if let Some(cache) = self.history.get_mut(&node.probe) {
                cache.extend_from_slice(&out);
            }
            if node.probe == "logits" {
                logits = out;
            } else {
                live.insert(&node.probe, (out, node.width));
            }
            live.retain(|probe, _| last_use.get(probe).is_some_and(|&at| at > index));
        }
        self.position += t;
        Ok(logits)
    }

    /// Where a layer begins has the next one read, and looks at the weights of a node that is about to run
    /// for the first time, if it is to do so.
    fn arrive(&self, index: usize) -> Result<()> {
        let nodes = &self.plan.nodes;
        let begins = index == 0 || nodes[index].layer != nodes[index - 1].layer;
        if begins {
            self.read_ahead(index);
        }
        if self.watched && self.position == 0 {
            for (arg, source) in &nodes[index].inputs {
                match source {
                    // Of an embedding the rows at hand are read.
                    Source::Weight(_) if nodes[index].op == "embedding" => {}
                    Source::Weight(name) | Source::Part(name, _)
                        if self.weights[index].contains_key(arg.as_ref()) =>
                    {
                        self.checkpoint.scan_finite_of(name, HEAD_BYTES)?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Has the weights of the layer after that of node `index` read, after the last layer those of the head.
    fn read_ahead(&self, index: usize) {
        let here = self.plan.nodes[index].layer;
        let next = here.map_or(0, |layer| layer + 1);
        let next = (next < self.plan.layers).then_some(next);
        let after = self.plan.nodes.iter().zip(&self.weights).skip(index);
        let tensors: Vec<Tensor> = after
            .filter(|(node, _)| node.layer == next && node.layer != here)
            .flat_map(|(_, tensors)| tensors.values().cloned())
            .collect();
        // Asking blocks while the disk has enough to do. Without a thread the layer is read when it is used.
        let ask = move || tensors.iter().for_each(Tensor::read_ahead);
        let _ = std::thread::Builder::new().name("read-ahead".into()).spawn(ask);
    }

    /// Checks that tokens can be fed.
    ///
    /// # Errors
    /// When there is none, or one is outside the vocabulary.
    pub fn check(&self, ids: &[u32]) -> Result<()> {
        if ids.is_empty() {
            return Err(Error::Request("the prompt is empty: there is no token to run".into()));
        }
        let vocab = self.checkpoint.config().vocab_size;
        if let Some(i) = ids.iter().position(|&id| id as usize >= vocab) {
            return Err(Error::Request(format!(
                "token id {} at index {i} is beyond the vocabulary of {vocab} in {}",
                ids[i],
                self.checkpoint.dir().join("config.json").display()
            )));
        }
        Ok(())
    }
}

/// The index of the last node that reads each probe.
fn last_uses(plan: &Plan) -> BTreeMap<&str, usize> {
    let reads = plan.nodes.iter().enumerate().flat_map(|(i, n)| n.reads().map(move |p| (p, i)));
    reads.collect()
}

/// Makes weights what a model in `dtype` holds.
fn load(tensors: &mut Tensors, dtype: Dtype) {
    for (arg, t) in tensors {
        *t = as_loaded(t.clone(), arg, dtype);
    }
}

/// Bytes of a head's weight that are in memory at a time in a streamed forward.
pub const HEAD_BYTES: usize = 1 << 27;

/// A linear layer with rows of its weight, that is columns of its output, a piece at a time.
fn by_pieces<R: Basis>(
    node: &Node,
    preset: &Preset,
    inputs: &Inputs<'_, R>,
    stored: &Tensors,
) -> Result<Vec<R>> {
    let weight =
        stored.get("weight").filter(|w| node.op == "matmul" && w.bytes().len() > HEAD_BYTES);
    let Some(weight) = weight else { return R::run(node, preset, inputs, stored) };
    let n = weight.shape()[0];
    let rows = (HEAD_BYTES / (weight.bytes().len() / n)).max(1);
    let mut out = Vec::new();
    for start in (0..n).step_by(rows) {
        let range = start..n.min(start + rows);
        let mut piece = stored.clone();
        for arg in ["weight", "bias"] {
            if let Some(t) = stored.get(arg) {
                piece.insert(arg.into(), t.slice_outer(range.clone()));
            }
        }
        let mut edges = Inputs::stored(&piece);
        if let Some(x) = inputs.get("x") {
            edges = edges.with("x", x.clone());
        }
        let part = R::run(node, preset, &edges, &piece)?;
        piece["weight"].release();
        let m = part.len() / range.len();
        out.resize(m * n, R::lift(0.0));
        for (to, from) in out.chunks_exact_mut(n).zip(part.chunks_exact(range.len())) {
            to[range.clone()].copy_from_slice(from);
        }
    }
    Ok(out)
}

/// The probe that only the logits read.
const LAST_NORM: &str = "final_norm";

fn borrowed<R: Real>(data: &[R], width: usize, view: View) -> Arg<'_, R> {
    Arg::Made { shape: view.shape(data.len() / width, width), data: Cow::Borrowed(data) }
}
