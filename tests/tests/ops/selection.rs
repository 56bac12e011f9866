//! `embedding` and `argmax`: exact whatever the basis.

use assay_reference::arith::Ball;
use assay_reference::ops::argmax::{self, Argmax};
use assay_reference::ops::embedding::{self, Embedding};
use assay_reference::ops::{Op, Tensors};
use assay_reference::{Dtype, Tensor};
use proptest::prelude::*;

use crate::harness::{Draw, STORED, config, holds, setup, whole};

/// The first NaN, else the first of the largest.
fn first_of_the_largest(row: &[f64]) -> usize {
    let mut best = 0;
    for i in 0..row.len() {
        if row[i].is_nan() {
            return i;
        }
        if row[i] > row[best] {
            best = i;
        }
    }
    best
}

fn special() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => (-3i32..3).prop_map(f64::from),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        2 => Just(f64::NEG_INFINITY),
        1 => Just(-0.0),
    ]
}

proptest! {
    #![proptest_config(config(60))]

    #[test]
    fn embedding_copies_rows(v in 1usize..30, h in 1usize..20, t in 1usize..9, seed: u64, dtype in 0usize..3, wide: bool) {
        let mut draw = Draw::new(seed);
        let weight = draw.tensor(STORED[dtype], &[v, h], 1.0);
        let ids: Vec<f64> = (0..t).map(|_| draw.below(v) as f64).collect();
        let rows = weight.to_f64();
        let want: Vec<(f64, f64)> = ids.iter()
            .flat_map(|&i| rows[i as usize * h..(i as usize + 1) * h].iter().map(|&x| (x, 0.0)))
            .collect();
        let ids = Tensor::from_f64(if wide { Dtype::I64 } else { Dtype::I32 }, &[t], &ids);
        let s = setup::<Embedding, 2>(embedding::Params::default(), [("ids", ids), ("weight", weight)]);
        holds(&s, &want);
        prop_assert!(whole::<_, Ball<24>>(&s).iter().all(|b| b.r == 0.0));
    }

    #[test]
    fn argmax_follows_torchs_rules(rows in prop::collection::vec(prop::collection::vec(special(), 7), 1..5)) {
        let flat = rows.concat();
        let x = Tensor::from_f64(Dtype::F32, &[rows.len(), 7], &flat);
        let want: Vec<(f64, f64)> = rows.iter().map(|r| (first_of_the_largest(r) as f64, 0.0)).collect();
        holds(&setup::<Argmax, 1>(argmax::Params::default(), [("x", x)]), &want);
        for r in &rows {
            prop_assert_eq!(argmax::argmax(r), first_of_the_largest(r));
        }
    }
}

/// What prints as `!!!!`: broken logits of every kind choose id 0.
#[test]
fn broken_logits_choose_id_0() {
    for x in [f64::NAN, f64::NEG_INFINITY, f64::INFINITY, 0.0, 3.5] {
        assert_eq!(argmax::argmax(&[x; 9]), 0, "{x}");
    }
}

#[test]
fn an_id_outside_the_vocabulary_is_refused() {
    for id in [-1, 5, i32::MAX] {
        let tensors: Tensors = [
            ("ids".to_string(), Tensor::from_i32(&[2], &[0, id])),
            ("weight".to_string(), Tensor::from_f64(Dtype::F32, &[5, 1], &[0.0; 5])),
        ]
        .into();
        let e = Embedding::check(&embedding::Params::default(), &tensors).expect_err("refused");
        let text = e.to_string();
        assert!(text.contains("ids") && text.contains(&id.to_string()), "{text}");
    }
}
