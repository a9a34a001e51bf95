"""All rows."""

from . import control, image, layers, numbers, pictures, several, shapes, sound, states, text, views, vision

ROWS = [
    *vision.ROWS,
    *image.ROWS,
    *text.ROWS,
    *pictures.ROWS,
    *sound.ROWS,
    *several.ROWS,
    *layers.ROWS,
    *control.ROWS,
    *shapes.ROWS,
    *states.ROWS,
    *views.ROWS,
    *numbers.ROWS,
]
