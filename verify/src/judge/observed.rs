//! A run of a subject, with what is needed to evaluate hypotheses on it.

use std::borrow::Cow;
use std::sync::OnceLock;

use assay_reference::ops::{Edit, Op, OutSpec, Setup, Tile};
use assay_reference::{Dtype, Result, Rounding, Tensor};

use super::accept::{Arithmetic, Expected, Metrics, compare_rows, expect, lambda};
use super::{Observation, Options};

/// Columns of a product that are looked at first.
const COLUMNS: usize = 32;
/// Elements of an output whose bounds are in memory at a time, about,
const ELEMENTS: usize = 1 << 22;
/// and the fewest rows: a product reads its weights once for all of them.
const ROWS: usize = 32;

/// Tiles that refuse most wrong hypotheses, from the cheapest to the dearest.
pub(super) struct TellTale {
    pub(super) sieve: Tile,
    pub(super) first: Option<Tile>,
    pub(super) rows: Tile,
}

/// A run with what is needed to evaluate hypotheses on it.
pub(super) struct Run<'a, O: Op> {
    pub(super) observation: &'a Observation,
    pub(super) base: Setup<O>,
    pub(super) arithmetic: Arithmetic,
    /// The choices of a preset, already made in `base`.
    pub(super) preset: Vec<String>,
    pub(super) observed: Vec<f64>,
    pub(super) spec: OutSpec,
    /// Which of the op's outputs was observed.
    output: usize,
    /// The bound of the first setup that explained the whole output, which is asked for again.
    kept: OnceLock<(Setup<O>, Expected)>,
}

impl<'a, O: Op> Run<'a, O> {
    pub(super) fn new(
        observation: &'a Observation,
        output: Option<&str>,
        options: Options,
    ) -> Result<Self> {
        let case = &observation.case;
        let (mut base, mut specs) = O::open(case)?;
        let named = |name: &str| {
            specs.iter().position(|s| s.name == name).ok_or_else(|| {
                let known: Vec<_> = specs.iter().map(|s| s.name).collect();
                let what = format!("is no output of this op: {}", known.join(", "));
                assay_reference::Error::arg(O::name(&base.params), name, what)
            })
        };
        let which = output.map_or(Ok(0), named)?;
        let spec = specs.swap_remove(which);
        let output = &observation.output;
        if output.len() != spec.shape.iter().product::<usize>() {
            return Err(assay_reference::Error::arg(
                O::name(&base.params),
                spec.name,
                format!(
                    "{}: expected shape {:?}, got {:?}",
                    observation.label,
                    spec.shape,
                    output.shape()
                ),
            ));
        }
        base.policy.lambda = if observation.structured { f64::INFINITY } else { lambda() };
        let preset = options.preset.map(|p| p.edit(&mut base)).unwrap_or_default();
        let arithmetic = match case.dtype {
            Dtype::F64 => Arithmetic::F64,
            _ => Arithmetic::F32,
        };
        let observed = output.to_f64();
        Ok(Run {
            observation,
            base,
            arithmetic,
            preset,
            observed,
            spec,
            output: which,
            kept: OnceLock::new(),
        })
    }

    pub(super) fn setup(&self, edits: &[Edit<O>]) -> Setup<O> {
        let mut setup = self.base.clone();
        edits.iter().for_each(|e| e(&mut setup));
        setup
    }

    /// Elements of all inputs: what an evaluation costs, roughly.
    pub(super) fn size(&self) -> usize {
        self.base.tensors.values().map(Tensor::len).sum()
    }

    /// The observed elements of a tile.
    pub(super) fn observed(&self, tile: &Tile) -> Cow<'_, [f64]> {
        if *tile == Tile::ALL {
            return Cow::Borrowed(&self.observed);
        }
        let cols = self.spec.cols();
        let mut out = Vec::new();
        for r in tile.rows_of(self.spec.rows()) {
            tile.pick(&self.observed[r * cols..(r + 1) * cols], &mut out);
        }
        Cow::Owned(out)
    }

    /// The oracle's values of the observed output.
    pub(super) fn values(&self, setup: &Setup<O>, tile: &Tile) -> Vec<f64> {
        setup.eval::<f64>(tile).swap_remove(self.output).data
    }

    /// The bound of the observed output.
    pub(super) fn expect(&self, setup: &Setup<O>, tile: &Tile) -> Cow<'_, Expected> {
        match self.kept.get() {
            Some((kept, e)) if *tile == Tile::ALL && kept.is_same(setup) => Cow::Borrowed(e),
            _ => Cow::Owned(expect(setup, self.output, self.arithmetic, tile)),
        }
    }

    /// How a setup stores the observed output.
    pub(super) fn rounding(&self, setup: &Setup<O>) -> Rounding {
        O::rounding(&setup.params, &setup.policy, self.output)
    }

    /// Evaluates a tile and compares its rows; `at` of each is a column of the tile.
    pub(super) fn compare_rows(&self, setup: &Setup<O>, tile: &Tile) -> Vec<Metrics> {
        let (output, cols) = (self.rounding(setup), tile.cols_of(self.spec.cols()).len());
        let part = |part: &Tile| {
            let e = self.expect(setup, part);
            let rows = compare_rows(&self.observed(part), &e, output, cols);
            if let Cow::Owned(e) = e
                && *part == Tile::ALL
                && rows.iter().all(Metrics::accepted)
            {
                self.kept.get_or_init(|| (setup.clone(), e));
            }
            rows
        };
        self.parts(tile).iter().flat_map(part).collect()
    }

    /// A tile in parts whose bounds do not take too much memory.
    pub(super) fn parts(&self, tile: &Tile) -> Vec<Tile> {
        let (rows, cols) = (self.spec.rows(), tile.cols_of(self.spec.cols()).len());
        if tile.rows.as_ref().map_or(rows, Vec::len) * cols <= ELEMENTS {
            return vec![tile.clone()];
        }
        let cut = |rows: &[usize]| Tile { rows: Some(rows.to_vec()), cols: tile.cols.clone() };
        tile.rows_of(rows).chunks((ELEMENTS / cols).max(ROWS)).map(cut).collect()
    }

    /// Evaluates and compares a tile.
    pub(super) fn compare(&self, setup: &Setup<O>, tile: &Tile) -> Metrics {
        Metrics::of_rows(&self.compare_rows(setup, tile))
    }

    /// Rows that tell hypotheses apart: those where the defaults err most, and these with both ends. Of
    /// a product also columns, since it costs as much as it has columns: the worst ones, and others evenly.
    /// `defaults` are the metrics of their rows.
    pub(super) fn tell_tale(&self, defaults: &[Metrics]) -> TellTale {
        let (rows, cols) = (self.spec.rows(), self.spec.cols());
        let mut order: Vec<(usize, (f64, usize))> =
            defaults.iter().map(|m| (m.worst, m.at)).enumerate().collect();
        order.sort_by(|a, b| b.1.0.total_cmp(&a.1.0).then(a.0.cmp(&b.0)));
        let worst: Vec<usize> = order.iter().take(2).map(|(r, _)| *r).collect();
        let mut picked = worst.clone();
        picked.extend([0, rows - 1]);
        picked.sort_unstable();
        picked.dedup();
        let apart = O::columns_apart(&self.base.params);
        let columns = (apart && cols >= 4 * COLUMNS).then(|| {
            let evenly = (0..COLUMNS).map(|i| i * cols / COLUMNS);
            let mut all: Vec<usize> = evenly.chain(order.iter().take(2).map(|o| o.1.1)).collect();
            all.sort_unstable();
            all.dedup();
            all
        });
        let narrow = |rows: &[usize]| Tile { rows: Some(rows.to_vec()), cols: columns.clone() };
        TellTale {
            sieve: narrow(&worst),
            first: columns.is_some().then(|| narrow(&picked)),
            rows: Tile { rows: Some(picked), cols: None },
        }
    }

    /// `label: 3 of 120 elements outside, worst at [1, 5]: expected 1.5, got 2.5 (40 x its budget)`.
    pub(super) fn describe(&self, setup: &Setup<O>, m: &Metrics) -> String {
        let (r, c) = (m.at / self.spec.cols(), m.at % self.spec.cols());
        let expected = self.expect(setup, &Tile { rows: Some(vec![r]), cols: Some(vec![c]) }).v[0];
        let times = if m.worst < 1e6 { format!("{:.3}", m.worst) } else { "over a million".into() };
        format!(
            "{}: {} of {} elements outside their interval, worst at row {r} column {c}: expected {expected}, got {} ({times} times its budget)",
            self.observation.label, m.outside, m.elements, self.observed[m.at],
        )
    }
}
