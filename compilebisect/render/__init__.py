"""Renderings of a report. Each is made from the report alone and can be made again later."""

from compilebisect.render.formats import FORMATS, render

__all__ = ["FORMATS", "render"]
