"""The public names of NVTabular 23.08 and what became of them, for `from_nvtabular.py`.

Facts only: names, and the arguments they took. A table in three parts: names that are the same but
for the first word, names that are elsewhere, and names that are gone, with what to do instead.
"""

from __future__ import annotations

# By module, each name with the arguments it took. `nvtabular` becomes `tabfeed`, nothing else.
SAME: dict[str, dict[str, str]] = {
    "": {
        "Dataset": "path_or_source engine npartitions part_size part_mem_fraction storage_options "
        "dtypes client cpu base_dataset schema",
        "Workflow": "output_node client",
        "ColumnSelector": "names subgroups tags",
        "ColumnSchema": "name tags properties dtype",
        "Schema": "column_schemas",
        "Distributed": "client cluster_type force_new",
    },
    "Dataset": {
        "to_parquet": "output_path shuffle preserve_files output_files out_files_per_proc "
        "row_group_size num_threads dtypes cats conts labels suffix partition_on method "
        "write_hugectr_keyset",
        "to_ddf": "columns shuffle seed",
        "to_iter": "columns indices shuffle seed use_file_metadata epochs",
        "shuffle_by_keys": "keys hive_data npartitions",
        "repartition": "npartitions partition_size",
        "merge": "left right",
        "persist": "",
        "head": "",
        "num_rows": "",
        "npartitions": "",
        "partition_lens": "",
    },
    "Workflow": {
        "fit": "dataset",
        "transform": "dataset",
        "fit_transform": "dataset",
        "fit_schema": "input_schema",
        "input_schema": "",
        "output_schema": "",
        "input_dtypes": "",
        "output_dtypes": "",
        "output_node": "",
        "subworkflows": "",
        "get_subworkflow": "name",
        "remove_inputs": "input_cols",
        "clear_stats": "",
        "save": "path modules_byvalue",
        "load": "path client",
        "graph": "",
    },
    "io": {"Shuffle": ""},
    "ops": {
        "AddMetadata": "tags properties",
        "AddProperties": "properties",
        "AddTags": "tags",
        "Bucketize": "boundaries",
        "Categorify": "freq_threshold out_path cat_cache dtype on_host encode_type name_sep "
        "search_sorted num_buckets vocabs max_size single_table cardinality_memory_limit "
        "tree_width split_out split_every",
        "Clip": "min_value max_value",
        "ColumnSelector": "names subgroups tags",
        "ColumnSimilarity": "left_features right_features metric on_device",
        "DataStats": "",
        "DifferenceLag": "partition_cols shift",
        "DropLowCardinality": "min_cardinality",
        "Dropna": "",
        "FillMedian": "add_binary_cols",
        "FillMissing": "fill_val add_binary_cols",
        "Filter": "f",
        "Groupby": "groupby_cols sort_cols aggs name_sep ascending",
        "HashBucket": "num_buckets",
        "HashedCross": "num_buckets",
        "JoinExternal": "df_ext on how on_ext columns_ext drop_duplicates_ext kind_ext cache",
        "JoinGroupby": "cont_cols stats split_out split_every cat_cache out_path on_host name_sep "
        "tree_width",
        "LambdaOp": "f dependency label dtype tags properties",
        "ListSlice": "start end pad pad_value",
        "LogOp": "",
        "Normalize": "out_dtype",
        "NormalizeMinMax": "out_dtype",
        "Operator": "",
        "ReduceDtypeSize": "float_dtype",
        "Rename": "f postfix name",
        "StatOperator": "",
        "TagAsItemFeatures": "",
        "TagAsItemID": "",
        "TagAsUserFeatures": "",
        "TagAsUserID": "",
        "TargetEncoding": "target target_mean kfold fold_seed p_smooth out_col out_dtype split_out "
        "split_every cat_cache out_path on_host name_sep drop_folds tree_width",
        "ValueCount": "",
        "get_embedding_sizes": "source output_dtypes",
    },
    "loader.torch": {
        "TorchAsyncItr": "dataset cats conts labels batch_size shuffle seed_fn parts_per_chunk "
        "device global_size global_rank drop_last sparse_names sparse_max sparse_as_dense",
        "DLDataLoader": "dataset batch_size collate_fn pin_memory num_workers",
    },
    "loader.tensorflow": {
        "KerasSequenceLoader": "paths_or_dataset batch_size label_names feature_columns cat_names "
        "cont_names engine shuffle seed_fn buffer_size device parts_per_chunk reader_kwargs "
        "global_size global_rank drop_last sparse_names sparse_max sparse_as_dense schema",
        "KerasSequenceValidater": "dataloader",
        "configure_tensorflow": "memory_allocation device",
    },
    "framework_utils.tensorflow.layers": {
        "DenseFeatures": "feature_columns aggregation",
        "LinearFeatures": "feature_columns",
        "DotProductInteraction": "interaction_type self_interaction",
        "XDeepFmOuterProduct": "dim",
    },
    "framework_utils.tensorflow": {
        "make_feature_column_workflow": "feature_columns label_name category_dir",
        "convert_tfrecords_to_parquet": "filenames output_dir compression_type chunks "
        "convert_lists",
    },
}

# Arguments that are gone on purpose, and why.
WITHOUT: dict[str, dict[str, str]] = {
    "Dataset": {
        "path_or_source": "called `source`; it is the first argument",
        "client": "see tabfeed.set_client",
        "cpu": "files are read on the CPU, or by a loader's `reader=` on the GPU",
        "base_dataset": "a dataset made from another keeps what it needs",
    },
    "Dataset.to_parquet": {
        "output_path": "called `path`; it is the first argument",
        "num_threads": "all cores; see `executor=`",
        "dtypes": "types are the workflow's",
        "cats": "roles are tags of the schema",
        "conts": "roles are tags of the schema",
        "labels": "roles are tags of the schema",
        "suffix": "always .parquet",
        "method": "there is one",
        "write_hugectr_keyset": "no HugeCTR",
    },
    "Dataset.to_ddf": {"shuffle": "write with shuffle=, or a loader's", "seed": "as shuffle"},
    "Dataset.to_iter": {
        "use_file_metadata": "footers are always used",
        "epochs": "iterate again",
    },
    "Dataset.shuffle_by_keys": {"hive_data": "found by itself"},
    "Schema": {"column_schemas": "called `columns`; it is the first argument"},
    "Distributed": {"cluster_type": "see docs/scaling.md", "force_new": "see docs/scaling.md"},
    "Workflow.transform": {"dataset": "called `data`; it is the first argument"},
    "Workflow.fit_schema": {"input_schema": "called `schema`; it is the first argument"},
    "Workflow.remove_inputs": {"input_cols": "called `names`; it is the first argument"},
    "framework_utils.tensorflow.convert_tfrecords_to_parquet": {
        "convert_lists": "lists of one value become numbers where all are"
    },
    "framework_utils.tensorflow.make_feature_column_workflow": {
        "category_dir": "the workflow keeps its vocabularies"
    },
    "ops.get_embedding_sizes": {"output_dtypes": "sizes do not depend on it"},
    "Workflow.save": {"modules_byvalue": "functions are saved by import path"},
}

# Names whose place or word changed.
ELSEWHERE: dict[str, str] = {
    "nvtabular.ColumnGroup": "tabfeed.ColumnSelector",
    "nvtabular.WorkflowNode": "tabfeed.ops.Node",
    "nvtabular.Dataset.compute": "tabfeed.Dataset.to_polars",
    "nvtabular.Dataset.tail": "tabfeed.Dataset.sample",
    "nvtabular.Dataset.validate_dataset": "tabfeed.Dataset.validate",
    "nvtabular.Dataset.regenerate_dataset": "tabfeed.doctor.rewrite",
    "nvtabular.Dataset.infer_schema": "tabfeed.Dataset.with_schema",
    "nvtabular.tools.data_gen.DatasetGen": "tabfeed.datagen",
    "nvtabular.tools.dataset_inspector.DatasetInspector": "tabfeed.io.inspect",
    "merlin.core.utils.set_dask_client": "tabfeed.set_client",
    "merlin.dag.ops.subgraph.Subgraph": "tabfeed.ops.Subgraph",
    "merlin.dag.ops.udf.UDF": "tabfeed.ops.UDF",
    "merlin.io.Dataset": "tabfeed.Dataset",
    "merlin.schema.Schema": "tabfeed.Schema",
    "merlin.schema.ColumnSchema": "tabfeed.ColumnSchema",
    "merlin.schema.Tags": "tabfeed.Tags",
    "merlin.schema.io.TensorflowMetadata": "tabfeed.schema.merlin",
    "merlin.dtypes": "tabfeed.schema.dtypes",
    "merlin.dataloader.torch.Loader": "tabfeed.loader.torch.Loader",
    "merlin.dataloader.tensorflow.Loader": "tabfeed.loader.tensorflow.KerasSequenceLoader",
    "merlin.dataloader.jax.Loader": "tabfeed.loader.jax.Loader",
    "merlin.dataloader.ops.embeddings.EmbeddingOperator": "tabfeed.loader.EmbeddingOperator",
    "merlin.dataloader.ops.padding.Padding": "tabfeed.loader.Padding",
    "nvtabular.inference (Triton ensembles)": "tabfeed.Workflow.transform",
}

# Names that are gone, and what to do.
GONE: dict[str, str] = {
    "nvtabular.Serial": "threads of this machine are the default",
    "nvtabular.Dataset.to_cpu, to_gpu": "a loader's `device=` and `reader=` say where",
    "nvtabular.Dataset.to_npy": "np.save(path, dataset.to_polars().to_numpy())",
    "nvtabular.Dataset.to_hugectr": "HugeCTR is no longer served",
    "nvtabular.Dataset.file_partition_map": "`files` and `partitions`",
    "nvtabular.framework_utils.torch.models.Model": "examples/click_model.py is one to start from",
    "nvtabular.framework_utils.torch.layers.embeddings": "nn.Embedding, nn.EmbeddingBag: "
    "examples/movielens_torch.py",
    "nvtabular.framework_utils.torch.utils.process_epoch": "a loop of your own: "
    "examples/criteo_torch.py",
}
