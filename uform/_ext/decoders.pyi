from collections.abc import Callable, Mapping

from uform._ext.enums import Modality
from uform._types import Buffer

def set_decoder(modality: Modality, decoder: Callable[[int, Buffer, Mapping[str, int]], Buffer] | None) -> None: ...
def get_decoder(modality: Modality) -> Callable[[int, Buffer, Mapping[str, int]], Buffer] | None: ...
