"""vLLM's `_custom_ops` over plain torch, by the layouts that its kernels document. Written for tests."""

__version__ = "0.9.2"
