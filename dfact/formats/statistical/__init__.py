"""Files of statistical programs: SPSS, Stata and SAS.

spss       sav, zsav and por
stata      dta
sas        sas7bdat with its catalogue, and xpt
readstat   what the three share: ReadStat reads them, through pyreadstat
"""
