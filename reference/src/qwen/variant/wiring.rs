//! How a forward is put together: its plan, weights made for it, and how positions are counted.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::checkpoint::{Checkpoint, Config};
use crate::error::Result;
use crate::ops::rope::Angle;
use crate::qwen::plan::{Plan, Source};
use crate::tensor::Tensor;

/// Makes a tensor from those of a checkpoint.
pub type Make = Arc<dyn Fn(&Checkpoint) -> Result<Tensor> + Send + Sync>;

/// How token positions are counted over the calls of a forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Positions {
    /// From 0, on through all calls.
    #[default]
    Right,
    /// From 0 in each call: a fault.
    Restarted,
    /// From the sum of the starts of all calls so far: a fault that begins with the third call.
    Summed,
    /// From twice the call's start: a fault that begins with the second call.
    Doubled,
    /// Shifted by this in every call after the first: a fault.
    LaterShifted(i64),
    /// Shifted by this in every call: a fault that attention, which sees differences only, hides.
    Shifted(i64),
}

impl Positions {
    /// The first position of the call that starts at token `starts.last()`; `starts` has those of all
    /// calls so far.
    pub fn first(self, starts: &[usize]) -> i64 {
        let start = starts.last().copied().unwrap_or(0) as i64;
        match self {
            Positions::Right => start,
            Positions::Restarted => 0,
            Positions::Summed => starts.iter().map(|&s| s as i64).sum(),
            Positions::Doubled => 2 * start,
            Positions::LaterShifted(by) => start + if starts.len() > 1 { by } else { 0 },
            Positions::Shifted(by) => start + by,
        }
    }
}

/// A forward, put together.
#[derive(Clone)]
pub struct Wiring {
    /// The op calls.
    pub plan: Plan,
    /// Tensors that the plan reads and the checkpoint does not hold under these names, or not so.
    pub made: BTreeMap<String, Make>,
    /// How positions are counted.
    pub positions: Positions,
    /// Whether each call sees only its own keys and values: a fault.
    pub forgets: bool,
}

impl fmt::Debug for Wiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made: Vec<_> = self.made.keys().collect();
        f.debug_struct("Wiring")
            .field("plan", &self.plan)
            .field("made", &made)
            .field("positions", &self.positions)
            .field("forgets", &self.forgets)
            .finish()
    }
}

impl From<Plan> for Wiring {
    fn from(plan: Plan) -> Wiring {
        Wiring { plan, made: BTreeMap::new(), positions: Positions::Right, forgets: false }
    }
}

impl Wiring {
    /// The right forward of a config's model.
    pub fn new(config: &Config, angle: Angle) -> Wiring {
        Plan::new(config, angle).into()
    }

    /// Whether the plan reads the tensor called `name`.
    pub fn reads(&self, name: &str) -> bool {
        let is = |s: &Source| matches!(s, Source::Weight(n) if n == name);
        self.plan.nodes.iter().any(|n| n.inputs.iter().any(|(_, s)| is(s)))
    }

    /// Only the op calls of some layers, with the embedding when they begin with layer 0 and the head
    /// when they end with the last. What lies before is then given to the forward by its probe.
    pub fn span(mut self, layers: &Range<usize>, embed: bool, head: bool) -> Wiring {
        self.plan.nodes.retain(|n| match n.layer {
            Some(layer) => layers.contains(&layer),
            None if n.op == "embedding" => embed,
            None => head,
        });
        self
    }

    /// Makes the tensor that op calls with `layer` and `module` read as `part` under a name of its own,
    /// for all of them: `edit` gets the name that they read now.
    pub(super) fn remake(
        &mut self,
        wanted: impl Fn(&str) -> bool,
        make: impl Fn(String) -> Make,
        mark: &str,
    ) {
        for node in &mut self.plan.nodes {
            for (_, source) in &mut node.inputs {
                if let Source::Weight(name) = source
                    && wanted(name)
                {
                    let new = format!("{name} {mark}");
                    self.made.insert(new.clone(), make(name.clone()));
                    *name = new;
                }
            }
        }
    }
}
