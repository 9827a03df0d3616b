"""The tables of a model that ``dfact export --style apa`` writes."""

from dfact.questionnaires.apa.effects import write_apa_effects
from dfact.questionnaires.apa.loadings import write_apa_loadings
from dfact.questionnaires.apa.write import FORMATS

__all__ = ["FORMATS", "write_apa_effects", "write_apa_loadings"]
