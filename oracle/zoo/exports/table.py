"""All rows."""

from . import control, image, layers, numbers, shapes, states, views, vision

ROWS = [
    *vision.ROWS,
    *image.ROWS,
    *layers.ROWS,
    *control.ROWS,
    *shapes.ROWS,
    *states.ROWS,
    *views.ROWS,
    *numbers.ROWS,
]
