"""Mutants that no test kills, each with the reason why that is right."""

EXPLAINED: dict[str, str] = {
    "pass storage is identity": "padding starts from the same facts and derives them anew; the stage is there to be "
    "looked at alone",
    "contract capwise::mrope_kv_write_: slot_mapping null is another": "slot 0 is on the null page",
    "contract capwise::qsa_compress_: locality is row": "it gives nothing but state, of whose rows no locality speaks",
}
