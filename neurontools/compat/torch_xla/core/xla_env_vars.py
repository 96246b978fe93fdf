"""torch_xla.core.xla_env_vars: names of environment variables. No library of this machine reads those of TPUs and GPUs."""

CPU_NUM_DEVICES = "CPU_NUM_DEVICES"
GPU_NUM_DEVICES = "GPU_NUM_DEVICES"
HOST_ORDINAL = "XRT_HOST_ORDINAL"
HOST_WORLD_SIZE = "XRT_HOST_WORLD_SIZE"
PJRT_DEVICE = "PJRT_DEVICE"
TPU_NUM_DEVICES = "TPU_NUM_DEVICES"
