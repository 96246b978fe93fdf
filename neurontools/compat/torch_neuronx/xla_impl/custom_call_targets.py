"""torch_neuronx.xla_impl.custom_call_targets: names of marks in graphs."""

from neurontools.compat.unsupported import missing_names

AwsNeuronModuleMarkerStartForward = "AwsNeuronModuleMarkerStart-Forward"
AwsNeuronModuleMarkerStartBackward = "AwsNeuronModuleMarkerStart-Backward"
AwsNeuronModuleMarkerEndForward = "AwsNeuronModuleMarkerEnd-Forward"
AwsNeuronModuleMarkerEndBackward = "AwsNeuronModuleMarkerEnd-Backward"
__getattr__ = missing_names(__name__)
