"""Commands of questionnaires: ``dfact describe``, ``dfact compare``, and those of factor analysis."""
