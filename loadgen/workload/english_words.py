"""Common English words, from which prompts are made.

Most tokenizers have most of them as one token after a space; `calibrate` finds out which. Short, common, lower case,
and without parts that a tokenizer may split or a content filter may reject.
"""

ENGLISH_WORDS: tuple[str, ...] = tuple(
    """
a able about above across act add after again against age ago air all almost alone along already also always am
among an and animal another answer any anything apple are area arm around art as ask at away baby back bad bag ball
bank bar base basket be beach bear beautiful became because become bed been before began begin behind being believe
bell below beside best better between big bird birthday bit black blue board boat body book both bottom bowl box boy
branch brave bread break bridge bright bring broken brother brought brown build building built bus busy but
butterfly button buy by cake call came can candle cannot car card care careful carry case castle cat catch caught
cause center chair chance change check chicken child children choose circle city class clean clear climb close
clothes cloud coat cold color come common complete cook cookie cool corner could count country course cover cow
create cried cross cry cup cut dad dance dark daughter day dear decide deep deer did different dinner dirty do
doctor does dog doll done door down draw dream dress drink drive drop dry duck during each ear early earth easy eat
edge egg eight either else empty end energy enjoy enough even evening ever every everyone everything example excited
explain eye face fact fair fall family far farm farmer fast fat father feed feel feet fell felt few field fight fill
final find fine finger fire first fish five fix flag flat flew floor flower fly follow food foot for forest forget
form forward found four fox free fresh friend friendly frog from front fruit full fun funny game garden gave general
gentle get giant gift girl give glad glass go goal goat gold gone good got grandma grandpa grass gray great green
grew ground group grow had hair half hand happen happy hard has hat have he head hear heard heart heavy held hello
help hen her here hid hide high hill him himself his hit hold hole home hope horse hot hour house how hug huge human
hundred hungry hurry hurt ice idea if important in inside into is island it its job join joy juice jump just keep
key kick kind king kiss kitchen kite kitten knew know land large last late later laugh lazy lead leaf learn least
leave leaves left leg less let letter level life lift light like line lion list listen little live lock log long
look lost lot loud love low luck lucky lunch machine mad made magic main make man many map mark market matter may
maybe me mean meat meet men mess met middle might milk mind mine minute mirror miss mix moment money monkey moon
more morning most mother mountain mouse mouth move much mud music must my name near neck need nest never new next
nice night nine no noise none nose not note nothing notice now number of off offer often oh oil okay old on once one
only open or orange order other our out outside over own page paint pair paper parent park part party pass past path
pay people perfect person pet phone picture piece pig pink place plan plant plate play please point police pond poor
pot power present press pretty problem proud pull push put queen question quick quickly quiet rabbit race rain
rainbow ran reach read ready real really reason red remember rest result rich ride right ring river road robot rock
roll roof room rope round row run sad safe said same sand sat save saw say scared school sea season seat second
secret see seed seem seen sell send set seven shadow shape share sharp she sheep shell shelf shine shiny ship shirt
shoe shop short should shout show shut sick side sign silly silver simple since sing sister sit six size skin sky
sleep slide slow slowly small smart smell smile snake snow so soft soil some someone something sometimes son song
soon sorry sound soup space speak special spell spider splash spoon spot spring square squirrel stand star start
state station stay step stick still stone stood stop store storm story strange street string strong such sudden
suddenly sugar summer sun sunny sure surprise sweet swim swing table tail take talk tall taste teach teacher team
tell ten than thank that the their them then there these they thick thin thing think third this those though thought
three threw through throw tie time tiny tired to today together told tomorrow too took tooth top touch toward tower
town toy train travel tree tried trip truck true trust try turn turtle two under until up upon us use useful van
very view village visit voice wait wake walk wall want warm was wash watch water wave way we wear weather week well
went were wet what wheel when where which while white who whole why wide wild will win wind window wing winter wise
wish with without wolf woman wonder wonderful wood word work world worm worry would write wrong yard year yellow yes
yet you young your
""".split()
)
