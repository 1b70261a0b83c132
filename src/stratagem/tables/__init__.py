"""Embeddings that are kept and trained row by row, wherever their rows live.

A map, from the outside in:

    table                a table, as the user describes it
    row_function         a function that looks rows up: which rows a batch needs, and what it makes of them
    lookups              where a function looks rows up, known before it is computed
    stacks               tables that are kept together, and which rows of them a batch needs
    row_source, view     where the rows of a model's tables are; one table, looked at
    owners, merging      which server has which ids; the gradients of several pushes as one
    table_files          rows in files
    row_store            the rows that one process holds, and their updates
    keyed_columns        columns whose rows belong to ids
    index, columns       where the row of an id is; arrays that grow
"""

from stratagem.tables.table import Table as Table
