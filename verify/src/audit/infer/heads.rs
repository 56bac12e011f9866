//! Heads, key and value heads, and the elements of a head, from the rows of q_proj and k_proj.

use super::{CONFIG, Infer, int};

impl Infer<'_> {
    /// Heads, key and value heads, and the elements of a head.
    pub(super) fn heads(&mut self) {
        let (Some(q), Some(k)) =
            (self.shapes.linear("self_attn.q_proj"), self.shapes.linear("self_attn.k_proj"))
        else {
            return;
        };
        let field = |name: &str| int(&self.fixed, name).filter(|n| *n > 0);
        let (hidden, heads, kv) =
            (field("hidden_size"), field("num_attention_heads"), field("num_key_value_heads"));
        let explicit = field("head_dim");
        let quotient = hidden.zip(heads).map(|(h, n)| h / n);
        let assumed = explicit.or(quotient);
        let over =
            |rows: u64, n: Option<u64>| n.filter(|n| rows.is_multiple_of(*n)).map(|n| rows / n);
        let (by_q, by_k) = (over(q[0], heads), over(k[0], kv));
        let dim = self
            .shapes
            .head_norm
            // Both counts give one size: it is the size that is wrong and not the two counts.
            .or_else(|| by_q.filter(|d| by_k == Some(*d)))
            .or_else(|| assumed.filter(|d| q[0].is_multiple_of(*d) && k[0].is_multiple_of(*d)))
            .or(by_q);
        let Some(dim) =
            dim.filter(|d| *d > 0 && q[0].is_multiple_of(*d) && k[0].is_multiple_of(*d))
        else {
            return;
        };
        if explicit.is_none() && (self.is_qwen3() || quotient != Some(dim))
            || explicit.is_some_and(|d| d != dim)
        {
            let what = self.head_dim(explicit, quotient, hidden, heads, dim, q[0]);
            self.out.add("config.head_dim", format!("{CONFIG}: head_dim"), what);
        }
        if explicit.is_some() || quotient != Some(dim) || self.is_qwen3() {
            self.set("head_dim", dim);
        }
        self.replace(
            "config.heads",
            "num_attention_heads",
            q[0] / dim,
            &format!("q_proj has {} rows of heads of {dim}", q[0]),
        );
        self.replace(
            "config.kv_heads",
            "num_key_value_heads",
            k[0] / dim,
            &format!("k_proj has {} rows of heads of {dim}", k[0]),
        );
    }

    fn head_dim(
        &self,
        explicit: Option<u64>,
        quotient: Option<u64>,
        hidden: Option<u64>,
        heads: Option<u64>,
        dim: u64,
        rows: u64,
    ) -> String {
        let norm = match self.shapes.head_norm {
            Some(n) => format!(", and q_norm has {n} elements"),
            None => String::new(),
        };
        let truth = format!("q_proj has {rows} rows = {} heads x {dim}{norm}", rows / dim);
        match (explicit, quotient, hidden, heads) {
            (Some(d), ..) => format!("is {d}, but {truth}: it must be {dim}"),
            (None, Some(d), Some(h), Some(n)) => format!(
                "is not there, so that engines take hidden_size / num_attention_heads = {h} / {n} = {d}; {}{truth}: it must be {dim}",
                if d == dim {
                    "that is right by chance, but Qwen3's is explicit; "
                } else {
                    "but "
                }
            ),
            _ => format!("is not there; {truth}: it must be {dim}"),
        }
    }
}
