"""f16 traces of the committed tiny checkpoints; bf16 weights are cast to f16 as transformers loads them."""

from common import GOLDEN, arguments, deterministic, relative_rms, write_trace
from record import check_equals_eager, load, producer, run
from tiny import NOTES, TOKENS


def main():
    options = arguments(__doc__.splitlines()[0])
    deterministic()
    for name in options.names or ("tiny-qwen2", "tiny-qwen3"):
        checkpoint = GOLDEN / "checkpoints" / name
        model = load(checkpoint, "f16")
        tensors = run(model, TOKENS).tensors
        check_equals_eager(checkpoint, "f16", TOKENS, tensors["logits"])
        write_trace(
            options.out / "traces" / name / "f16",
            tensors,
            producer=producer(),
            dtype="f16",
            architecture=type(model).__name__,
            tokens=TOKENS,
            layers=model.config.num_hidden_layers,
            notes=f"{name}, {NOTES[0]}, one prefill on the CPU",
        )
        exact = run(load(checkpoint, "f64"), TOKENS).tensors["logits"]
        print(f"{name}: logits f16 against f64: relative rms {relative_rms(tensors['logits'], exact):.2e}")


if __name__ == "__main__":
    main()
