"""The ways in which versions of PyTorch call a module. The file has the name of PyTorch's own."""


class Module:
    """From PyTorch 2.1 on."""

    def _wrapped_call_impl(self, *args, **kwargs):
        return self._call_impl(*args, **kwargs)

    def _call_impl(self, *args, **kwargs):
        def inner():
            return self.forward(*args, **kwargs)
        return inner()

    __call__ = _wrapped_call_impl


class Before:
    """Before PyTorch 2.1."""

    def _call_impl(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    __call__ = _call_impl


class Closure:
    """Of no version: the only function has a closure."""

    def _call_impl(self, *args, **kwargs):
        def inner():
            return self.forward(*args, **kwargs)
        return inner()

    __call__ = _call_impl
