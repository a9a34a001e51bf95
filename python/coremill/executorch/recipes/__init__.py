"""Recipes for ``executorch.export``. Importing this module registers them."""

from executorch.export import recipe_registry

from .coreml_recipe_provider import CoreMLRecipeProvider
from .coreml_recipe_types import CoreMLRecipeType

recipe_registry.register_backend_recipe_provider(CoreMLRecipeProvider())

__all__ = ["CoreMLRecipeProvider", "CoreMLRecipeType"]
