"""AMD GPUs, read from the amdgpu driver's files and through AMD's library."""
