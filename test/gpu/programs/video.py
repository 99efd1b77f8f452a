"""A decoder of NVDEC beside a CUDA context, with its surfaces, and whether NVENC has a session to give."""
import ctypes

from checkpoint import checkpoint

import driver


class Rect(ctypes.Structure):
    _fields_ = [(x, ctypes.c_short) for x in ("left", "top", "right", "bottom")]


class Decoder(ctypes.Structure):  # CUVIDDECODECREATEINFO
    _fields_ = [(x, t) for names, t in (
        ("width height surfaces", ctypes.c_ulong), ("codec chroma", ctypes.c_int),
        ("flags depth intra max_width max_height reserved1", ctypes.c_ulong), ("display", Rect),
        ("format deinterlace", ctypes.c_int), ("target_width target_height outputs", ctypes.c_ulong),
        ("lock", ctypes.c_void_p), ("target", Rect), ("histogram", ctypes.c_ulong), ("reserved2", ctypes.c_ulong * 4),
    ) for x in names.split()]


class Session(ctypes.Structure):  # NV_ENC_OPEN_ENCODE_SESSION_EX_PARAMS
    _fields_ = [("version", ctypes.c_uint32), ("device_type", ctypes.c_uint32), ("device", ctypes.c_void_p),
                ("reserved", ctypes.c_void_p), ("api", ctypes.c_uint32), ("reserved1", ctypes.c_uint32 * 253),
                ("reserved2", ctypes.c_void_p * 64)]


class Functions(ctypes.Structure):  # NV_ENCODE_API_FUNCTION_LIST
    _fields_ = [("version", ctypes.c_uint32), ("reserved", ctypes.c_uint32), ("pointers", ctypes.c_void_p * 320)]


OPEN_SESSION = 29  # nvEncOpenEncodeSessionEx in Functions.pointers


def encoder(ctx):
    try:
        library = ctypes.CDLL("libnvidia-encode.so.1")
    except OSError as e:
        return str(e)
    api = ctypes.c_uint32()
    library.NvEncodeAPIGetMaxSupportedVersion(ctypes.byref(api))
    api = api.value >> 4 | (api.value & 15) << 24  # NVENCAPI_VERSION
    functions = Functions(version=api | 2 << 16 | 7 << 28)
    code = library.NvEncodeAPICreateInstance(ctypes.byref(functions))
    if code or not functions.pointers[OPEN_SESSION]:
        return f"NvEncodeAPICreateInstance: {code}"
    session, handle = Session(version=api | 1 << 16 | 7 << 28, device_type=1, device=ctx, api=api), ctypes.c_void_p()
    code = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(functions.pointers[OPEN_SESSION])(
        ctypes.byref(session), ctypes.byref(handle))
    return f"nvEncOpenEncodeSessionEx: {code}"


def decoder():
    """A decoder of H.264, or why there is none."""
    try:
        library = ctypes.CDLL("libnvcuvid.so.1")
    except OSError as e:
        return None, None, str(e)
    handle = ctypes.c_void_p()
    info = Decoder(width=1920, height=1088, surfaces=20, codec=4, chroma=1, flags=4, max_width=1920, max_height=1088,
                   target_width=1920, target_height=1088, outputs=2)
    code = library.cuvidCreateDecoder(ctypes.byref(handle), ctypes.byref(info))
    return library, handle, f"cuvidCreateDecoder: {code}" if code else ""


def main():
    checkpoint("ready")
    ctx = driver.retain(0)
    nvenc = encoder(ctx)
    library, handle, missing = decoder()
    checkpoint("opened", missing=missing, nvenc=nvenc)
    library.cuvidDestroyDecoder(handle)
    checkpoint("closed")


main()
