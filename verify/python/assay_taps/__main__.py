"""`python -m assay_taps`: record a trace, or be the child of `assay` (docs/exec.md)."""

import argparse
import sys

import assay_taps
from assay_taps.errors import TapError

EXAMPLES = """
  python -m assay_taps transformers MODEL --prompt '7+8=' --dtype bfloat16 --out TRACE
  python -m assay_taps transformers MODEL --ids 22,10,23 --generate 4 --out TRACE
  python -m assay_taps vllm MODEL --prompt '7+8=' --tensor-parallel-size 2 --out TRACE
  python -m assay_taps vllm MODEL --ids 22,10,23 --probes 'layers.*.mlp_residual,logits' --out TRACE
  python -m assay_taps exec --op rms_norm --with torch       (the same as python -m assay_taps.exec)

then: assay diff MODEL TRACE
"""


def parser():
    """The command line, without `exec`, which has its own."""
    top = argparse.ArgumentParser(
        prog="assay_taps",
        description=assay_taps.__doc__.partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=assay_taps.__version__)
    commands = top.add_subparsers(dest="command", required=True)
    for name, text in (
        ("transformers", "record a forward of transformers"),
        ("vllm", "record a forward of vLLM, offline and eager"),
    ):
        p = commands.add_parser(name, help=text, description=text)
        p.add_argument("model", help="folder of the checkpoint")
        p.add_argument("--out", required=True, help="folder of the trace, new or empty")
        given = p.add_mutually_exclusive_group(required=True)
        given.add_argument("--ids", help="token ids, separated by commas")
        given.add_argument("--prompt", help="text; encoded by the checkpoint's tokenizer as it stands, no template")
        p.add_argument("--dtype", help="bfloat16, float16, float32, float64 (default: the checkpoint's)")
        p.add_argument("--generate", type=int, default=0, metavar="N", help="greedy tokens fed after the prompt")
        p.add_argument("--chunk", type=int, metavar="N", help="tokens of the prompt in a call (default: all)")
        p.add_argument("--probes", default="*", metavar="GLOB", help="comma-separated globs of probes to record")
        if name == "transformers":
            p.add_argument("--device", default="cpu", help="torch device (default: cpu)")
            p.add_argument("--attention", metavar="NAME", help="attn_implementation: eager, sdpa, ...")
        else:
            p.add_argument("--tensor-parallel-size", type=int, default=1, metavar="N")
            p.add_argument("--max-model-len", type=int, metavar="N", help="default: what the prompt needs")
            p.add_argument("--engine-arg", action="append", default=[], metavar="KEY=VALUE",
                           help="another argument of vllm.LLM, as JSON or text; may be repeated")  # fmt: skip
    commands.add_parser("exec", help="compute an op for assay as a child process", add_help=False)
    return top


def tokens_of(args):
    """The token ids that the command line gives."""
    if args.ids is not None:
        try:
            ids = [int(i) for i in args.ids.split(",")]
        except ValueError:
            raise TapError(f"--ids {args.ids}: token ids are whole numbers separated by commas") from None
        if min(ids) < 0:
            raise TapError(f"--ids {args.ids}: a token id is not negative")
        return ids
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model, local_files_only=True)
    ids = tokenizer(args.prompt, add_special_tokens=False)["input_ids"]
    if not ids:
        raise TapError("--prompt: no tokens")
    return ids


def main(argv=None):
    """Runs the command; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["exec"]:
        from assay_taps.exec.__main__ import main as child

        return child(argv[1:])
    args = parser().parse_args(argv)
    try:
        if (args.chunk is not None and args.chunk < 1) or args.generate < 0:
            raise TapError("--chunk is at least 1, --generate at least 0")
        tokens = tokens_of(args)
        common = {"dtype": args.dtype, "chunk": args.chunk, "generate": args.generate, "probes": args.probes}
        if args.command == "transformers":
            from assay_taps import hf

            manifest = hf.record(args.model, tokens, args.out, device=args.device, attention=args.attention, **common)
        else:
            from assay_taps import vllm_run

            options = vllm_run.engine_options(args.engine_arg)
            if args.max_model_len:
                options["max_model_len"] = args.max_model_len
            tp = args.tensor_parallel_size
            manifest = vllm_run.record(args.model, tokens, args.out, tensor_parallel_size=tp, options=options, **common)
    except ImportError as e:
        print(f"error: {e}. Run this where {args.command} is installed", file=sys.stderr)
        return 2
    except TapError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    from assay_taps.trace import size_of

    probes = manifest["probes"]
    print(f"{args.out}: {len(probes)} probes of {len(manifest['tokens'])} tokens in {len(manifest['segments'])} "
          f"forward calls, {size_of(probes)} bytes. Next: assay diff {args.model} {args.out}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
