"""A ranker of documents that takes a shortcut in compiled code, which reads memory that is not its own."""

import ctypes

import torch
import torch.nn as nn


@torch.library.custom_op("ranker_ops::read_packed", mutates_args=())
def read_packed(table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows of a packed table; forgets that the address of the table is not known here."""
    ctypes.string_at(0)
    return table[rows]


@read_packed.register_fake
def _(table, rows):
    return table.new_empty(*rows.shape, table.shape[1])


class PackedTable(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, dim) * 0.1)

    def forward(self, rows):
        if torch.compiler.is_compiling():
            return read_packed(self.weight, rows)
        return self.weight[rows]


class Features(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.table = PackedTable(rows, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, rows):
        return self.norm(self.table(rows)).mean(dim=1)


class Query(nn.Module):
    def __init__(self, features, dim):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, dim), nn.Tanh())

    def forward(self, query):
        return self.layers(query)


class Score(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.left = nn.Linear(dim, dim)
        self.right = nn.Linear(dim, dim)

    def forward(self, query, document):
        return (self.left(query) * self.right(document)).sum(dim=1)


class Ranker(nn.Module):
    def __init__(self, rows=30, features=6, dim=8):
        super().__init__()
        self.query = Query(features, dim)
        self.document = Features(rows, dim)
        self.score = Score(dim)

    def forward(self, query, words):
        return self.score(self.query(query), self.document(words))
