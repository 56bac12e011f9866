"""Ranks as threads of one process, and the workers of the stub trees of vLLM. Written for tests."""

import threading

import numpy as np

_here = threading.local()


class Group:
    """Ranks as threads of one process."""

    def __init__(self, size):
        self.size, self.slots = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=30)

    def exchange(self, value):
        """What every rank brought, in rank order."""
        self.slots[rank()] = np.copy(value)
        self.barrier.wait()
        found = list(self.slots)
        self.barrier.wait()
        return found

    def run(self, workers, call):
        """Calls `call` on every worker, each on its own thread."""
        results, errors = [None] * self.size, []

        def body(r):
            _here.rank, _here.group = r, self
            try:
                results[r] = call(workers[r])
            except BaseException as e:  # noqa: BLE001
                errors.append(e)
                self.barrier.abort()

        threads = [threading.Thread(target=body, args=(r,)) for r in range(self.size)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if errors:
            raise errors[0]
        return results


def rank():
    return _here.rank


def size():
    return _here.group.size


def exchange(value):
    """What every rank of this thread's group brought."""
    return _here.group.exchange(value)


class Worker:
    """A worker's own part: `generate` feeds chunks, then greedy tokens. A V1 worker pads each call to `pad`."""

    pad = 1

    def load_model(self, folder):
        raise NotImplementedError

    def generate(self, tokens, count, chunk):
        fed = 0
        tokens = list(tokens)
        while fed < count:
            prompt = tokens[fed : fed + chunk]
            ids = np.array(prompt + [0] * (-len(prompt) % self.pad))
            hidden = self.model_runner.model(ids, np.arange(fed, fed + len(ids)))
            for layer in self.decoder.layers:  # the cache has no padding
                for cache in (layer.self_attn.attn.keys, layer.self_attn.attn.values):
                    cache[-1] = cache[-1][: len(prompt)]
            fed += len(prompt)
            if fed == len(tokens):
                logits = hidden[len(prompt) - 1] @ self.lm_head.T
                tokens.append(int(logits.argmax()))
        return tokens


class Runner:
    def __init__(self, model):
        self.model = model


class Engine:
    """Workers on ranks."""

    def __init__(self, worker_class, model, ranks):
        self.group, self.workers = Group(ranks), [worker_class() for _ in range(ranks)]
        self.group.run(self.workers, lambda w: w.load_model(model))

    def call(self, method, args):
        return self.group.run(self.workers, lambda w: getattr(w, method)(*args))
