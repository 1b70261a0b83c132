"""Embeddings that are kept and trained row by row, wherever their rows are.

A map, from the outside in:

    table                a table, as the user describes it
    row_source           where the rows of a model's tables are; the view of one table
    row_function         a function that looks rows up: finds the rows that a batch needs, and computes with them
    lookups              finds out where a function looks rows up, before it is computed
    stacks               tables that are kept together, and the rows of them that a batch needs
    row_partition        which server has which rows; the gradients of several pushes merged
    table_files          rows in files
    row_store            the rows that one process has, and their updates
    keyed_columns        columns whose rows belong to ids: an index over arrays that grow
"""

from stratagem.tables.table import Table as Table
