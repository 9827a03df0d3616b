"""Files of earlier versions of dfact are read, or refused with a clear message."""
