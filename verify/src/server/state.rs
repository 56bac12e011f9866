//! What log-probabilities say before any reference is asked: not finite, constant, collapsed, no distribution, not greedy.

use std::collections::{BTreeMap, BTreeSet};

use assay_reference::arith::math;

use super::evidence::{Evidence, Row};
use super::exchange::Exchange;
use super::groups::{prompt_len, threshold};
use crate::audit::Item;

/// Log-probabilities that differ by less are equal.
const EQUAL: f64 = 1e-3;
/// Rows that are needed to speak of all of them.
const ENOUGH: usize = 8;
/// Probabilities may sum to this: engines that compute them in bf16 are 2^-8 off.
const MOST: f64 = 1.02;
/// Places that are named.
const SHOWN: usize = 3;

/// Log-probabilities that could not be told, and the prompt lengths that separate them from others, if some do.
pub(super) fn not_finite(
    exchanges: &[Exchange],
    evidence: &Evidence,
) -> Option<(Item, Option<String>)> {
    let signs = &evidence.not_finite;
    let first = signs.first()?;
    let bad: BTreeSet<usize> = signs.iter().map(|s| s.exchange).collect();
    let mut what: Vec<String> = signs
        .iter()
        .take(SHOWN)
        .map(|s| format!("`{}`: {}", exchanges[s.exchange].name, s.what))
        .collect();
    if signs.len() > SHOWN {
        what.push(format!("and {} more", signs.len() - SHOWN));
    }
    let length = |i: &usize| prompt_len(&exchanges[*i], evidence, *i);
    // An answer without log-probabilities says nothing of theirs.
    let told = evidence.rows.iter().filter(|r| !r.items.is_empty()).map(|r| r.exchange);
    let good: BTreeSet<usize> = told.filter(|e| !bad.contains(e)).collect();
    let (w, r): (Vec<usize>, Vec<usize>) =
        (bad.iter().filter_map(length).collect(), good.iter().filter_map(length).collect());
    let lengths = threshold(&w, &r);
    if let Some(text) = &lengths {
        what.push(format!("it happens {text}"));
    } else if good.is_empty() {
        what.push("no answer with log-probabilities is free of it".into());
    }
    let place = place(&exchanges[first.exchange]);
    Some((Item::new("server.logits_not_finite", place, what.join("; ")), lengths))
}

/// Where a finding is seen.
pub(super) fn place(e: &Exchange) -> String {
    format!("{} {}", e.path, e.name)
}

/// All tokens as likely as each other, everywhere.
pub(super) fn constant(exchanges: &[Exchange], rows: &[Row], vocabulary: usize) -> Option<Item> {
    let all: Vec<f64> = rows.iter().flat_map(|r| r.items.iter().map(|i| i.1)).collect();
    let tokens: BTreeSet<u32> = rows.iter().flat_map(|r| r.items.iter().map(|i| i.0)).collect();
    let first = *all.first()?;
    if all.len() < ENOUGH || tokens.len() < 4 || all.iter().any(|x| (x - first).abs() > EQUAL) {
        return None;
    }
    let uniform = -math::ln(vocabulary as f64);
    let what = format!(
        "all {} log-probabilities are {first:.3}, of {} different tokens{}",
        all.len(),
        tokens.len(),
        if (first - uniform).abs() < EQUAL {
            format!(" = -ln({vocabulary}), the vocabulary")
        } else {
            String::new()
        }
    );
    Some(Item::new("server.logits_constant", place(&exchanges[rows.first()?.exchange]), what))
}

/// The likeliest token of a row whose rivals were told.
fn likeliest(row: &Row) -> Option<(u32, f64)> {
    let top = row.items.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1))?;
    // Of one token alone nothing is known of the others, unless it has most of the mass.
    (row.items.len() > 1 || top.1 > -0.69).then_some(top)
}

/// One token likeliest behind almost everything. `reference` is what it says of a token in a row, if it says anything.
pub(super) fn collapsed(
    exchanges: &[Exchange],
    rows: &[Row],
    reference: &dyn Fn(usize, u32) -> Option<f64>,
) -> Option<Item> {
    let mut contexts = BTreeSet::new();
    let mut by_token: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (i, row) in rows.iter().enumerate() {
        let Some((token, _)) = likeliest(row) else { continue };
        if contexts.insert(&row.prefix) {
            by_token.entry(token).or_default().push(i);
        }
    }
    let (&token, those) = by_token.iter().max_by_key(|(_, rows)| rows.len())?;
    if contexts.len() < ENOUGH || those.len() * 10 < contexts.len() * 9 {
        return None;
    }
    // A model may be like that on such a prompt.
    let agrees = |&&i: &&usize| reference(i, token).is_some_and(|lp| lp > -0.69);
    if those.iter().filter(agrees).count() * 2 > those.len() {
        return None;
    }
    let what = format!(
        "token {token} is the likeliest behind {} of {} different beginnings",
        those.len(),
        contexts.len()
    );
    Some(Item::new("server.collapsed", place(&exchanges[rows[those[0]].exchange]), what))
}

/// Probabilities that are none.
pub(super) fn not_a_distribution(
    exchanges: &[Exchange],
    rows: &[Row],
    vocabulary: usize,
) -> Option<Item> {
    rows.iter().find_map(|row| {
        let sum: f64 = row.items.iter().map(|i| math::exp(i.1.min(700.0))).sum();
        let beyond = row.items.iter().find(|i| i.0 as usize >= vocabulary);
        let what = if let Some((id, _)) = beyond {
            format!("token {id} has a probability, and the vocabulary is {vocabulary}")
        } else if sum.is_nan() || sum > MOST {
            format!("the probabilities of {} tokens sum to {sum:.4}", row.items.len())
        } else {
            return None;
        };
        let behind =
            format!("{} (behind {} tokens)", place(&exchanges[row.exchange]), row.prefix.len());
        Some(Item::new("server.not_a_distribution", behind, what))
    })
}

/// A token taken at temperature 0 that is not the likeliest.
pub(super) fn not_greedy(exchanges: &[Exchange], rows: &[Row]) -> Option<Item> {
    let odd = |row: &&Row| {
        let own = row.taken.and_then(|t| row.items.iter().find(|i| i.0 == t));
        let top = row.items.iter().map(|i| i.1).fold(f64::NEG_INFINITY, f64::max);
        own.is_some_and(|own| top > own.1 + 1e-6)
    };
    let odd: Vec<&Row> = rows.iter().filter(odd).collect();
    let first = odd.first()?;
    let taken = first.taken?;
    let own = first.items.iter().find(|i| i.0 == taken)?.1;
    let top = first.items.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let asked = rows.iter().filter(|r| r.taken.is_some()).count();
    let what = format!(
        "{} of {asked} tokens: the first, {taken}, has {own:.4}, and token {} has {:.4}",
        odd.len(),
        top.0,
        top.1
    );
    Some(Item::new("server.not_greedy", place(&exchanges[first.exchange]), what))
}
