"""torch_xla, torch_neuronx and torchvision as scripts see them, and the launcher that offers them."""
