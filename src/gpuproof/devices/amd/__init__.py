"""AMD GPUs, read from the amdgpu driver's files and AMD's library."""
