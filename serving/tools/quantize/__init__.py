"""`cloudmatrix quantize`: a checkpoint in INT8, without training."""
