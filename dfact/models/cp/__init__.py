"""CP (PARAFAC) decompositions of tensors: ElasticCP, and CPALS as its baseline."""
