"""The one table of words: what names, descriptions and model cards call a kind of image."""

from typing import Literal, TypeAlias

ScanKind: TypeAlias = str
"""Kind of image, such as "T1" or "field map"; a modality ("MR") if no more is stated."""
WordRole: TypeAlias = Literal[
    "contrast",
    "derived",
    "mask",
    "part",
    "undo",
    "synthetic",
    "agent",
    "native",
    "to",
    "gradient",
    "plain",
]
"""Role of a word in a name. contrast: kind of image. derived: map or the like, whose name may also
state what it was computed from. mask: mask, labels or tissue map. part: structure, whose mask a
name may end with. undo: cancels a part, as in lesion_filled. synthetic: output of a network. agent,
native: with and without contrast agent. to: between an image and its space. gradient: gradient
echo, which makes T2 a T2*. plain: states no contrast; listed to recognise words written together.
"""

ANATOMICAL_MR = frozenset(
    {"T1", "T1ce", "T2", "FLAIR", "PD", "PD and T2", "T2*", "STIR", "DIR", "SWI", "MR"}
)
"""Kinds that a model for MR takes."""

MODALITIES: dict[ScanKind, str] = {"CT": "CT", "CBCT": "CT", "PET": "PT", "SPECT": "NM"}
"""DICOM Modality of kinds that are not MR."""

CONTRASTS: dict[ScanKind, str] = {
    "T1": "t1 t1w t1n t1wi t1pre inplanet1 unit1 mprage memprage fspgr irfspgr spgr irspgr bravo",
    "T1ce": "t1c t1ce t1gd t1gad t1post t1km ct1 gado",
    "T2": "t2 t2w t2wi inplanet2",
    "FLAIR": "flair t2flair flairt2 t2f tirm fla",
    "PD": "pdw pdwi",
    "PD and T2": "pdt2",
    "T2*": "t2star t2starw t2s",
    "STIR": "stir",
    "DIR": "dir",
    "PSIR": "psir",
    "SWI": "swi swan",
    "MR": "mr mri",
    "CT": "ct cta cect ldct ncct hrct",
    "CBCT": "cbct conebeam",
    "PET": "pet fdg suv psma",
    "SPECT": "spect",
    "ultrasound": "ultrasound",
    "MP2RAGE": "mp2rage",
    "diffusion": "dwi dti dmri hardi diff diffusion noddi b0 trace tracew tensor",
    "functional": "bold boldref sbref fmri fcmri rfmri rsfmri tfmri func resting",
    "EPI": "epi ep2d mbep2d epirt",
    "perfusion": "asl pcasl pasl m0 m0scan dsc dce ctp perf perfusion pwi",
    "angiography": "angio mra mrv tof",
    "spectroscopy": "svs mrsi mrs mrsref",
    "series for a map": "mese megre vfa irt1 mts",
    "localizer": "localizer localiser loc scout survey topogram scanogram",
}
"""Kinds of images and their words."""

DERIVED: dict[ScanKind, str] = {
    "quantitative map": (
        "map maps mapping t1map t2map t2starmap r1map r2map r2starmap pdmap t1rho r2star mtsat mtr "
        "mtrmap mwfmap m0map s0map chimap qsm cbf cbv rcbf rcbv relcbf mtt ttp tmax ktrans "
        "thickness dividedby divided div ratio"
    ),
    "diffusion map": "adc fa md colfa expadc dwimap icvf isovf odi",
    "statistic": "tstat zstat fstat zfstat cope varcope spmt spmf resms pval",
    "field map": (
        "fieldmap fieldmaphz fmap phasediff b0map b0rf b1 b1map tb1map rb1map magnitude magph"
    ),
    "phase": "phase pha imaginary",
    "bias field": "biasfield",
    "transform": ("warp xfm warpfield deformation displacement dvf coef coeff affine jac jacobian"),
    "MP2RAGE inversion": "inv1 inv2",
    "projection": "mip minip",
    "difference": "subtraction subtracted",
    "voided image": "voided",
    "radiotherapy dose": "dose rtdose",
    "CIFTI file": "dscalar dtseries dconn pscalar ptseries pconn",
}
"""Maps and other images that are no scans, and their words."""

_ROLES: dict[WordRole, str] = {
    "mask": (
        "mask masks brainmask brainmasks msk seg segs dseg probseg aseg segm segmentation "
        "segmentations label labels labelmap labelmaps labeled dlabel softseg pve pveseg mixeltype "
        "dtissue probtissue lesion lesions lesionmask aparc aparcaseg wmparc parcellation atlas "
        "ribbon contour contours rtstruct gtv ctv ptv gt groundtruth staple consensus synthseg "
        "fseg firstseg origsegs gmseg wmseg posterior posteriors probability prob probs inskull "
        "outskull outskin overlay defacemask annot annotation glistrboost rois 5tt"
    ),
    "part": (
        "wmh tumor tumour hippocampus hipp amygdala thalamus putamen caudate pallidum accumbens "
        "ventricle ventricles edema necrosis subcort gm wm csf skull vessel vessels"
    ),
    "undo": "filled filling inpainted removed strip stripped unstripped masked",
    "synthetic": (
        "synthetic synthesized synthesised synth fake pseudo generated pred predicted prediction "
        "synthsr from simulated gan cyclegan pix2pix"
    ),
    "agent": "gd gad gadolinium ce contrast postcontrast enhanced km",
    "native": "pre precontrast without wo noncontrast non no ohne unenhanced nativ native",
    "to": "to into in on onto reg registered coreg coregistered aligned",
    "gradient": "gre ffe fgre fl2d fl3d me2d medic",
    "plain": (
        "brain head space mni highres standard template resample resampled adni weighted "
        "corrected warped image images scan extraction cortical tissue manual training syn first"
    ),
}

AMBIGUOUS = ("pd", "pt", "ir", "bias", "field", "post", "c", "real", "ph", "roi")
"""Words whose meaning depends on their neighbours: PD may be Parkinson's disease, PT a patient."""

TABLE: dict[str, tuple[WordRole, ScanKind]] = {
    **{word: ("contrast", kind) for kind, words in CONTRASTS.items() for word in words.split()},
    **{word: ("derived", kind) for kind, words in DERIVED.items() for word in words.split()},
    **{word: (role, word) for role, words in _ROLES.items() for word in words.split()},
}
"""Role of each word, and the kind of image that it names, if it names one."""

SUFFIXES: dict[str, ScanKind] = {
    suffix: kind
    for kind, suffixes in {
        "T1": "T1w inplaneT1 UNIT1",
        "T2": "T2w inplaneT2",
        "FLAIR": "FLAIR",
        "PD": "PDw PD",
        "PD and T2": "PDT2",
        "T2*": "T2starw T2star",
        "CT": "ct",
        "PET": "pet",
        "angiography": "angio",
        "diffusion": "dwi dwiref trace",
        "functional": "bold boldref sbref cbv noRF",
        "EPI": "epi",
        "perfusion": "asl m0scan",
        "spectroscopy": "svs mrsi mrsref unloc",
        "series for a map": (
            "FLASH MEGRE MESE VFA IRT1 MP2RAGE MPM MTS MTR TB1DAM TB1EPI TB1AFI TB1TFL TB1RFM "
            "TB1SRGE RB1COR"
        ),
        "quantitative map": (
            "T1map T2map T2starmap R1map R2map R2starmap PDmap MTRmap MTsat T1rho MWFmap MTVmap "
            "Chimap S0map M0map"
        ),
        "diffusion map": "ADC FA colFA expADC dwimap",
        "field map": "phasediff phase phase1 phase2 magnitude magnitude1 magnitude2 fieldmap "
        "TB1map RB1map",
        "mask": "mask dseg probseg defacemask",
        "transform": "xfm",
        "microscopy": "TEM SEM uCT BF DF PC DIC FLUO CONF PLI CARS 2PE MPE SR NLO OCT SPIM XPCT",
        "photograph": "photo",
        "recording": (
            "aslcontext asllabeling beh blood channels coordsystem description descriptions eeg "
            "electrodes emg events headshape ieeg markers meg motion nirs optodes physio "
            "physioevents scans sessions stim"
        ),
    }.items()
    for suffix in suffixes.split()
}
"""Kind of image by the suffix of a BIDS name: all of the schema, and some of derivatives."""

ENTITIES = frozenset(
    [
        "acq",
        "atlas",
        "ce",
        "cohort",
        "chunk",
        "den",
        "desc",
        "dir",
        "echo",
        "flip",
        "hemi",
        "inv",
        "label",
        "mod",
        "mt",
        "nuc",
        "part",
        "proc",
        "rec",
        "recording",
        "res",
        "run",
        "sample",
        "seg",
        "scale",
        "ses",
        "space",
        "split",
        "stain",
        "sub",
        "task",
        "tpl",
        "trc",
        "tracksys",
        "voi",
        "from",
        "to",
        "mode",
        "fmapid",
        "model",
        "param",
        "pvc",
        "suvr",
    ]
)
"""Keys in BIDS names: all of the schema, and some of derivatives."""


def modality_of(kind: ScanKind) -> str:
    """Return the DICOM Modality of a kind of image."""
    return MODALITIES.get(kind, "MR")
