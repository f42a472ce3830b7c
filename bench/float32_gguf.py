"""Write a GGUF file whose tensors are all float32, for libraries that read GGUF.

    python float32_gguf.py SOURCE TARGET
"""

import os
import sys
from pathlib import Path

import gguf
import numpy as np

MADE_BY_WRITER = {"general.architecture", "general.file_type", "general.quantization_version"}


def write(source: Path, target: Path) -> None:
    """Dequantise with the gguf package, as `dflash_lite.load` does; keep all settings."""
    reader = gguf.GGUFReader(source)
    part = target.with_suffix(".part")
    writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for name, field in reader.fields.items():
        if name in MADE_BY_WRITER or name.startswith("GGUF."):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        array = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, target)


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
