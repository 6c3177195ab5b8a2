/* onednn: products by oneDNN, 2.x or 3.x. bf16 products are primitives, compiled
 * once for each shape and number of threads, and kept. */
#include "base/mem.h"
#include "matlib.h"
#include "trainer/ops/ops.h"

#if DCP_HAS_ONEDNN

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <string.h>

#if DNNL_VERSION_MAJOR != 2 && DNNL_VERSION_MAJOR != 3
#error "this file knows oneDNN 2 and 3; configure with -DDCP_WITH_ONEDNN=OFF"
#endif

#define ALIGN 64
#define MAX_PRODUCTS 256 /* the oldest goes when a new shape comes */

struct matlib {
    bool serial;
    bool bf16; /* the CPU multiplies bf16 itself */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct product *products;
    int n_products, next; /* next: the one to replace when all are taken */
    void *work;           /* scratch of the primitive that runs */
    size_t work_bytes;
};

static int failed(dnnl_status_t status, const char *what, struct dcp_error *err)
{
    if (status == dnnl_out_of_memory)
        return dcp_error_memory(err, what);
    return dcp_error_set(err, DCP_E_UNSUPPORTED, "oneDNN failed at %s: %s", what,
                         dnnl_status2str(status));
}

int matlib_sgemm(const struct matmul_shape *s, const float *a, const float *b, float *c,
                 struct dcp_error *err)
{
    dnnl_status_t status =
        dnnl_sgemm(s->trans_a ? 'T' : 'N', s->trans_b ? 'T' : 'N', s->m, s->n, s->k, 1, a,
                   s->lda, b, s->ldb, s->accumulate ? 1 : 0, c, s->ldc);
    return status == dnnl_success ? DCP_OK : failed(status, "a matrix product", err);
}

/* A primitive for one shape and number of threads; NULL where oneDNN has none. */
struct product {
    struct matmul_shape shape;
    int threads;
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, c, work;
    size_t work_bytes;
};

/* oneDNN 3 made descriptors opaque and joined two steps of 2.x into one. */
#if DNNL_VERSION_MAJOR >= 3
#define MD_REF(md) (md)
#define MD_CONST_REF const_dnnl_memory_desc_t

static dnnl_status_t describe(dnnl_memory_desc_t *out, const dnnl_dims_t dims,
                              dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(out, 2, dims, type, strides);
}

static void undescribe(dnnl_memory_desc_t md)
{
    if (md)
        dnnl_memory_desc_destroy(md);
}

static dnnl_status_t choose(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                            const dnnl_memory_desc_t md[3],
                            const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, engine, md[0], md[1], NULL, md[2],
                                             attr);
}

static dnnl_status_t append_sum(dnnl_post_ops_t post_ops)
{
    return dnnl_post_ops_append_sum(post_ops, 1, 0, dnnl_data_type_undef);
}
#else
#define MD_REF(md) (&(md))
#define MD_CONST_REF const dnnl_memory_desc_t *

static dnnl_status_t describe(dnnl_memory_desc_t *out, const dnnl_dims_t dims,
                              dnnl_data_type_t type, const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type, strides);
}

static void undescribe(dnnl_memory_desc_t md)
{
    (void)md;
}

static dnnl_status_t choose(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                            const dnnl_memory_desc_t md[3],
                            const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]);
    if (status != dnnl_success)
        return status;
    return dnnl_primitive_desc_create(out, &desc, attr, engine, NULL);
}

static dnnl_status_t append_sum(dnnl_post_ops_t post_ops)
{
    return dnnl_post_ops_append_sum(post_ops, 1);
}
#endif

static void product_fini(struct product *p)
{
    dnnl_memory_t memories[] = { p->a, p->b, p->c, p->work };
    for (size_t i = 0; i < DCP_ARRAY_LEN(memories); i++)
        if (memories[i])
            dnnl_memory_destroy(memories[i]);
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

/* Our scratch and, where asked for, sums onto what c holds. */
static dnnl_status_t make_attr(bool accumulate, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t post_ops = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(out);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && accumulate) {
        status = dnnl_post_ops_create(&post_ops);
        if (status == dnnl_success)
            status = append_sum(post_ops);
        if (status == dnnl_success)
            status = dnnl_primitive_attr_set_post_ops(*out, post_ops);
    }
    if (post_ops)
        dnnl_post_ops_destroy(post_ops);
    return status;
}

static dnnl_status_t make_memories(struct product *p, dnnl_engine_t engine,
                                   const dnnl_memory_desc_t md[3],
                                   const_dnnl_primitive_desc_t pd)
{
    MD_CONST_REF work = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    p->work_bytes = work ? dnnl_memory_desc_get_size(work) : 0;
    dnnl_status_t status = dnnl_success;
    if (p->work_bytes)
        status = dnnl_memory_create(&p->work, work, engine, DNNL_MEMORY_NONE);
    dnnl_memory_t *memories[] = { &p->a, &p->b, &p->c };
    for (int i = 0; i < 3 && status == dnnl_success; i++)
        status = dnnl_memory_create(memories[i], MD_REF(md[i]), engine, DNNL_MEMORY_NONE);
    return status;
}

static int product_init(struct product *p, const struct matlib *lib,
                        const struct matmul_shape *s, int threads, struct dcp_error *err)
{
    *p = (struct product){ .shape = *s, .threads = threads };
    const dnnl_dims_t dims[] = { { s->m, s->k }, { s->k, s->n }, { s->m, s->n } };
    const dnnl_dims_t strides[] = {
        { s->trans_a ? 1 : s->lda, s->trans_a ? s->lda : 1 },
        { s->trans_b ? 1 : s->ldb, s->trans_b ? s->ldb : 1 },
        { s->ldc, 1 },
    };
    dnnl_memory_desc_t md[3];
    memset(md, 0, sizeof md);
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < 3 && status == dnnl_success; i++)
        status = describe(&md[i], dims[i], i < 2 ? dnnl_bf16 : dnnl_f32, strides[i]);
    if (status == dnnl_success)
        status = make_attr(s->accumulate, &attr);
    if (status == dnnl_success)
        status = choose(&pd, lib->engine, md, attr);
    if (status == dnnl_success)
        status = make_memories(p, lib->engine, md, pd);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&p->primitive, pd);
    if (pd)
        dnnl_primitive_desc_destroy(pd);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    for (int i = 0; i < 3; i++)
        undescribe(md[i]);
    if (status == dnnl_success || status == dnnl_unimplemented)
        return DCP_OK;
    product_fini(p);
    return failed(status, "preparing a bf16 matrix product", err);
}

static bool same(const struct matmul_shape *a, const struct matmul_shape *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda &&
           a->ldb == b->ldb && a->ldc == b->ldc && a->trans_a == b->trans_a &&
           a->trans_b == b->trans_b && a->accumulate == b->accumulate;
}

static int find_product(struct matlib *lib, const struct matmul_shape *s,
                        struct product **out, struct dcp_error *err)
{
    int threads = lib->serial ? 1 : ops_threads();
    for (int i = 0; i < lib->n_products; i++) {
        *out = &lib->products[i];
        if ((*out)->threads == threads && same(&(*out)->shape, s))
            return DCP_OK;
    }
    if (lib->n_products < MAX_PRODUCTS) {
        *out = &lib->products[lib->n_products++];
    } else {
        *out = &lib->products[lib->next];
        lib->next = (lib->next + 1) % MAX_PRODUCTS;
        product_fini(*out);
    }
    /* A primitive plans for the threads that it finds when it is made. */
    int before = ops_threads();
    if (threads != before)
        ops_set_threads(threads);
    int rc = product_init(*out, lib, s, threads, err);
    if (threads != before)
        ops_set_threads(before);
    return rc;
}

static int reserve_work(struct matlib *lib, size_t size_bytes, struct dcp_error *err)
{
    if (size_bytes <= lib->work_bytes)
        return DCP_OK;
    free(lib->work);
    lib->work = dcp_mem_aligned(ALIGN, size_bytes);
    lib->work_bytes = lib->work ? size_bytes : 0;
    return lib->work ? DCP_OK : dcp_error_memory(err, "scratch of a matrix product");
}

/* The API has no const; a source is only read. */
static dnnl_status_t set_source(dnnl_memory_t memory, const void *data)
{
    union {
        const void *in;
        void *out;
    } handle = { data };
    return dnnl_memory_set_data_handle(memory, handle.out);
}

int matlib_bf16(struct matlib *lib, const struct matmul_shape *s, const uint16_t *a,
                const uint16_t *b, float *c, bool *out_done, struct dcp_error *err)
{
    *out_done = false;
    if (!lib->bf16)
        return DCP_OK;
    struct product *p;
    int rc = find_product(lib, s, &p, err);
    if (rc || !p->primitive)
        return rc;
    DCP_TRY(reserve_work(lib, p->work_bytes, err));
    *out_done = true;
    dnnl_exec_arg_t args[] = { { DNNL_ARG_SRC, p->a },
                               { DNNL_ARG_WEIGHTS, p->b },
                               { DNNL_ARG_DST, p->c },
                               { DNNL_ARG_SCRATCHPAD, p->work } };
    int n_args = p->work ? 4 : 3;
    dnnl_status_t status = set_source(p->a, a);
    if (status == dnnl_success)
        status = set_source(p->b, b);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(p->c, c);
    if (status == dnnl_success && p->work)
        status = dnnl_memory_set_data_handle(p->work, lib->work);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(p->primitive, lib->stream, n_args, args);
    if (status == dnnl_success)
        status = dnnl_stream_wait(lib->stream);
    return status == dnnl_success ? DCP_OK : failed(status, "a bf16 matrix product", err);
}

int matlib_new(bool serial, struct matlib **out, struct dcp_error *err)
{
    struct matlib *lib = dcp_mem_calloc(1, sizeof *lib);
    if (!lib)
        return dcp_error_memory(err, "matrix products");
    lib->serial = serial;
    lib->products = dcp_mem_calloc(MAX_PRODUCTS, sizeof *lib->products);
    if (!lib->products) {
        matlib_free(lib);
        return dcp_error_memory(err, "matrix products");
    }
    dnnl_status_t status = dnnl_engine_create(&lib->engine, dnnl_cpu, 0);
    if (status == dnnl_success)
        status = dnnl_stream_create(&lib->stream, lib->engine, dnnl_stream_default_flags);
    if (status != dnnl_success) {
        matlib_free(lib);
        return failed(status, "its start", err);
    }
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    unsigned want =
        (unsigned)dnnl_cpu_isa_avx512_core_bf16; /* instruction sets are bits */
    lib->bf16 = (isa & want) == want;
    *out = lib;
    return DCP_OK;
}

void matlib_free(struct matlib *lib)
{
    if (!lib)
        return;
    for (int i = 0; i < lib->n_products; i++)
        product_fini(&lib->products[i]);
    free(lib->products);
    free(lib->work);
    if (lib->stream)
        dnnl_stream_destroy(lib->stream);
    if (lib->engine)
        dnnl_engine_destroy(lib->engine);
    free(lib);
}

/* Its threads are OpenMP's. */
void matlib_set_threads(int n)
{
    (void)n;
}

void matlib_region_begin(void)
{
}

void matlib_region_end(void)
{
}

#endif
