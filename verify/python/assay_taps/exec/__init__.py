"""The child side of assay's exec protocol (docs/exec.md): reads cases from standard input, answers with outputs."""
