//! config.json against the tensors, and against released models.

use super::Code;

const TENSORS: &str =
    "Use the config.json that was published with these weights; the tensors tell the value above";

pub(super) const CODES: &[Code] = &[
    Code {
        code: "A440",
        name: "config.missing",
        why: "Engines take the model's shape and constants from it",
        served: "The engine does not start",
        advice: "Download config.json",
    },
    Code {
        code: "A43E",
        name: "config.damaged",
        why: "Engines take the model's shape and constants from it",
        served: "The engine does not start, or runs with defaults",
        advice: "Download the file again",
    },
    Code {
        code: "A43D",
        name: "config.duplicate_key",
        why: "A key that occurs twice: readers differ in which value they take",
        served: "Right on one engine and wrong on another",
        advice: "Remove one of the two",
    },
    Code {
        code: "A430",
        name: "config.architecture",
        why: "Another architecture runs other ops: without Qwen3's norms of q and k, or without Qwen2's biases, every layer is wrong",
        served: "A refusal at start (\"Head size 80 is not supported\"), or noise",
        advice: "Use the config.json that was published with these weights",
    },
    Code {
        code: "A431",
        name: "config.head_dim",
        why: "head_dim decides how q, k and v are cut into heads, the rotation and the scale of the scores; without it engines take hidden_size / num_attention_heads",
        served: "\"Head size 80 is not supported\" at start, a shape error, or noise; a mis-sized cache may overwrite weights",
        advice: "Put the head_dim above into config.json; better, use the config.json that was published with these weights",
    },
    Code {
        code: "A432",
        name: "config.heads",
        why: "q is cut into another number of heads than the weights have",
        served: "A shape error, or noise",
        advice: TENSORS,
    },
    Code {
        code: "A433",
        name: "config.kv_heads",
        why: "Queries read the wrong key and value heads",
        served: "A shape error, or noise",
        advice: TENSORS,
    },
    Code {
        code: "A434",
        name: "config.hidden_size",
        why: "The width of every layer",
        served: "A shape error at start",
        advice: TENSORS,
    },
    Code {
        code: "A435",
        name: "config.intermediate_size",
        why: "Rows of the MLP that the config does not count are dropped by a loader that slices; a size edited to fit a number of cards does exactly that",
        served: "A shape error, or fluent text that is worse",
        advice: "Set it to the tensors' value; where it does not divide by the cards, pad the weights with zeros instead",
    },
    Code {
        code: "A436",
        name: "config.vocab_size",
        why: "The rows of embedding and head are the ids that can be read and written",
        served: "A shape error, or ids cut off: the end token may be among them, so that it never stops",
        advice: TENSORS,
    },
    Code {
        code: "A437",
        name: "config.layers",
        why: "The config counts other layers than the files hold",
        served: "A refusal, or layers left out: fluent nonsense",
        advice: "Set num_hidden_layers to the files' count, or download the shards that are missing",
    },
    Code {
        code: "A443",
        name: "config.experts",
        why: "The router chooses among another number of experts than the files hold",
        served: "A shape error, or noise",
        advice: TENSORS,
    },
    Code {
        code: "A438",
        name: "config.tie",
        why: "tie_word_embeddings says whether the head is the embedding, and the files say otherwise",
        served: "The head is left as it was initialised, or the wrong matrix is used: noise",
        advice: "Set tie_word_embeddings to what the files hold",
    },
    Code {
        code: "A43A",
        name: "config.rope_missing",
        why: "Neither rope_theta nor rope_parameters.rope_theta is there: engines fall back to 10000, where Qwen's is 1000000 or more. transformers 5 moved the field",
        served: "Good for a few tokens, then noise: the angle is wrong from the second position on",
        advice: "Write rope_theta in both places, from the published config.json",
    },
    Code {
        code: "A43B",
        name: "config.rope_contradiction",
        why: "The old and the new spelling of the rotation say different things, and engines differ in which they read",
        served: "Right on one engine, noise on another",
        advice: "Make both say what the published config.json says",
    },
    Code {
        code: "A439",
        name: "config.field_missing",
        why: "Engines fill it with a default of the class, which is not the released models' value",
        served: "From nothing visible to noise, by the field and the engine",
        advice: "Take the field from the published config.json",
    },
    Code {
        code: "A43C",
        name: "config.dtype",
        why: "The config's dtype is not the stored one: bf16 weights cast to f16 overflow above 65504 and lose small values; Qwen's activations do overflow in f16",
        served: "`!!!!` or noise where something overflows, else slightly different text",
        advice: "Set dtype (torch_dtype) to the stored type, and do not override it when serving",
    },
    Code {
        code: "A43F",
        name: "config.refused",
        why: "A field has a value that cannot be right, or asks for something that assay does not run",
        served: "By the field: a refusal, or numbers that change",
        advice: "Compare the field with the published config.json",
    },
    Code {
        code: "A441",
        name: "release.differs",
        why: "The name is that of a released model, whose config has another value here",
        served: "By the field; a wrong rope_theta or eps gives fluent text that goes wrong with length",
        advice: "Use the published config.json, unless this model was trained further with this value",
    },
    Code {
        code: "A442",
        name: "name.parameters",
        why: "The name promises another number of parameters than the files hold: it is another model",
        served: "Answers of another model than the one asked for",
        advice: "Find out which model this is before it goes into service",
    },
];
