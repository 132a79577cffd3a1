"""A process that uses libnofrag.so on the simulated device and does what it is told, line by line.

usage: process.py LIBRARY. Commands on standard input, one answer a line:
  alloc MIB | free N | fail MIB | shared N MIB | error | fork | headroom | callback | calls | exit
"""

import ctypes as C
import json
import os
import sys


class Headroom(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("version", C.c_uint32), ("device", C.c_int32), ("low", C.c_int32),
                ("bytes", C.c_uint64), ("seconds", C.c_double), ("rate", C.c_double), ("confidence", C.c_double),
                ("spare", C.c_uint64 * 4)]


CALLBACK = C.CFUNCTYPE(None, C.POINTER(Headroom), C.c_void_p)


def main():
    lib = C.CDLL(sys.argv[1])
    lib.nofrag_malloc.restype = C.c_void_p
    lib.nofrag_malloc.argtypes = [C.c_size_t, C.c_int, C.c_void_p]
    lib.nofrag_free.argtypes = [C.c_void_p]
    lib.nofrag_set_headroom_callback.argtypes = [CALLBACK, C.c_void_p, C.c_uint64, C.c_double]
    lib.nofrag_stats_json.argtypes = [C.c_char_p, C.c_size_t, C.c_void_p]
    blocks, calls = [], []
    callback = CALLBACK(lambda headroom, _user: calls.append((headroom.contents.low, headroom.contents.bytes)))

    def error():
        text = C.c_char_p()
        lib.nofrag_last_error(C.byref(text))
        return text.value.decode()

    for line in sys.stdin:
        command, *words = line.split()
        answer = None
        if command in ("alloc", "fail"):
            block = lib.nofrag_malloc(int(float(words[0]) * (1 << 20)), 0, None)
            if block:
                blocks.append(block)
            answer = bool(block)
        elif command == "shared":
            # One after the other, each on one stream, used by another and freed; how many there were.
            answer = 0
            for _ in range(int(words[0])):
                block = lib.nofrag_malloc(int(words[1]) << 20, 0, C.c_void_p(0x100))
                answer += bool(block)
                lib.nofrag_record_stream(C.c_void_p(block), C.c_void_p(0x200))
                lib.nofrag_free(block)
        elif command == "free":
            answer = [lib.nofrag_free(blocks.pop()) for _ in range(int(words[0]))]
        elif command == "error":
            answer = error()
        elif command == "fork":
            child = os.fork()
            if child == 0:
                lib.nofrag_malloc(1024, 0, None)
                os._exit(0 if "forked" in error() else 1)
            answer = os.waitpid(child, 0)[1]
        elif command == "headroom":
            headroom = Headroom()
            headroom.struct_size = C.sizeof(headroom)
            status = lib.nofrag_get_headroom(0, C.byref(headroom))
            answer = [status, headroom.bytes, headroom.seconds, headroom.confidence]
        elif command == "callback":
            answer = lib.nofrag_set_headroom_callback(callback if words[0] != "none" else CALLBACK(), None,
                                                      int(words[1]), float(words[2]))
        elif command == "calls":
            answer = list(calls)
        elif command == "stats":
            buffer = C.create_string_buffer(1 << 16)
            lib.nofrag_stats_json(buffer, len(buffer), None)
            answer = json.loads(buffer.value)
        elif command == "exit":
            print("null", flush=True)
            return
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
