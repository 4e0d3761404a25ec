"""A Hugging Face ``config.json`` as spec files, one a type of attention layer, each value with the key it came from.

Pure: from the object of the file to layers (``import_config``), and from a layer to text (``spec_text``). What the
keys mean is told by ``model_type`` (``families``), after the modelling code of ``transformers``, which is not needed.
"""

from kgen.models.huggingface.document import Document, read
from kgen.models.huggingface.facts import Fact, RefusedError
from kgen.models.huggingface.layers import Imported, Layer, LeftOut, import_config
from kgen.models.huggingface.spec_text import spec_text

__all__ = ["Document", "Fact", "Imported", "Layer", "LeftOut", "RefusedError", "import_config", "read", "spec_text"]
