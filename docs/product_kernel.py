"""The kernel of the pictures: a product of two matrices with relu, by tiles that fit into PSUM."""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def product(stationary, moving):
    """Return relu(stationary.T @ moving), 128 rows and 512 columns at once."""
    depth, rows = stationary.shape
    columns = moving.shape[1]
    out = nl.ndarray((rows, columns), stationary.dtype, buffer=nl.shared_hbm)
    kept = [nl.load(stationary[nl.ds(start, 128)]) for start in range(0, depth, 128)]
    for column in range(0, columns, 512):
        loaded = [nl.load(moving[nl.ds(start, 128), nl.ds(column, 512)]) for start in range(0, depth, 128)]
        for row in range(0, rows, 128):
            total = nl.ndarray((128, 512), nl.float32, buffer=nl.psum)
            for left, right in zip(kept, loaded, strict=True):
                nisa.nc_matmul(dst=total, stationary=left[:, nl.ds(row, 128)], moving=right)
            tile = nl.ndarray((128, 512), stationary.dtype, buffer=nl.sbuf)
            nisa.activation(dst=tile, op=nl.relu, data=total)
            nl.store(out[nl.ds(row, 128), nl.ds(column, 512)], tile)
    return out
